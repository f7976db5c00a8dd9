// SPDX-License-Identifier: Apache-2.0
// ATen operators that need the device itself: allocation, geometry, copies.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "graphs.h"

namespace npu_emulator {
namespace {

// Pinning is ignored, as torch_npu does: vllm-ascend asks for pinned memory on the device.
at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, npu_allocator(), kNPUKeys, c10::dtype_or_default(type), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, npu_allocator(), kNPUKeys, c10::dtype_or_default(type));
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}
at::Tensor& set_storage(at::Tensor& self, at::Storage storage) { return at::native::set_(self, std::move(storage)); }
at::Tensor& set_storage_geometry(at::Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                                 c10::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(storage), offset, size, stride);
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) { return at::native::set_tensor_(self, source); }

// ---------------------------------------------------------------- copies
bool is_number(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.dim() == 0; }

void record_copy(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  bool on_device = source.is_privateuseone() && destination.is_privateuseone();
  TORCH_CHECK(non_blocking || on_device || is_number(source),
              "blocking copy between host and npu while capturing an NPU graph");
  Node node{Node::Kind::Copy, "aten::copy_"};
  node.source = recorded(is_number(source) ? source.clone() : source);  // numbers are passed by value
  node.destination = recorded(destination);
  add_node(std::move(node));
}

void count_copy(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  using counters::Kind;
  if (source.is_privateuseone() && destination.is_privateuseone()) {
    counters::add(Kind::Launch, "aten::copy_");
  } else {
    auto kind = source.is_privateuseone() ? Kind::DeviceToHost : Kind::HostToDevice;
    counters::add(kind, "aten::copy_", destination.numel() * source.element_size(), non_blocking);
  }
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  if (recording()) {
    record_copy(self, destination, non_blocking);
  } else {
    if (!updating()) check_stream_runs("copy_");
    count_copy(self, destination, non_blocking);
  }
  as_cpu(destination).copy_(as_cpu(self), non_blocking);
  return destination;
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  at::native::resize_(destination, self.sizes(), std::nullopt);
  return copy_from(self, destination, /*non_blocking=*/false);
}
at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(!recording(), "item(): synchronizes, not allowed while capturing an NPU graph");
  check_stream_runs("item()");
  counters::add(counters::Kind::DeviceToHost, "aten::_local_scalar_dense", self.element_size());
  return as_cpu(self).item();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("view", TORCH_FN(view));
  library.impl("_reshape_alias", TORCH_FN(reshape_alias));
  library.impl("resize_", TORCH_FN(resize));
  library.impl("set_.source_Storage", TORCH_FN(set_storage));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_geometry));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

}  // namespace npu_emulator
