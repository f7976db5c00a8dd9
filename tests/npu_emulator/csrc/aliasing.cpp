// SPDX-License-Identifier: Apache-2.0
#include "aliasing.h"

#include <ATen/ops/_conj.h>
#include <c10/core/CPUAllocator.h>

namespace npu_emulator {
namespace {

at::Tensor on_storage(c10::Storage storage, const at::Tensor& like, c10::DispatchKeySet keys) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  // A number that was wrapped into a tensor must not take part in type promotion as a tensor would.
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) tensor._set_conj(true);
  if (like.is_neg()) tensor._set_neg(true);
  return tensor;
}

c10::DispatchKeySet keys_of(c10::DeviceType device) {
  return device == kNPU ? kNPUKeys : c10::DispatchKeySet(c10::DispatchKey::CPU);
}

at::Tensor alias(const at::Tensor& tensor, c10::Device device) {
  auto* owner = new c10::Storage(tensor.storage());
  c10::DataPtr memory(const_cast<void*>(owner->data()), owner,
                      [](void* context) { delete static_cast<c10::Storage*>(context); }, device);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), owner->nbytes(), std::move(memory),
      device.is_cpu() ? c10::GetCPUAllocator() : npu_allocator(), /*resizable=*/true));
  return on_storage(std::move(storage), tensor, keys_of(device.type()));
}

}  // namespace

at::Tensor as_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  return alias(tensor, c10::Device(c10::kCPU));
}
at::Tensor as_npu(const at::Tensor& tensor, c10::DeviceIndex index) {
  if (!tensor.defined() || !tensor.is_cpu()) return tensor;
  return alias(tensor, c10::Device(kNPU, or_current(index)));
}
std::vector<at::Tensor> as_cpu(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> aliases;
  for (auto& tensor : tensors) aliases.push_back(as_cpu(tensor));
  return aliases;
}
std::vector<std::vector<at::Tensor>> as_cpu(const std::vector<std::vector<at::Tensor>>& tensors) {
  std::vector<std::vector<at::Tensor>> aliases;
  for (auto& list : tensors) aliases.push_back(as_cpu(list));
  return aliases;
}

at::Tensor on_storage(c10::Storage storage, const at::Tensor& like) {
  return on_storage(std::move(storage), like, keys_of(like.device().type()));
}
at::Tensor weak_reference(const at::Tensor& tensor) {
  c10::DataPtr address(const_cast<void*>(tensor.storage().data()), nullptr, [](void*) {}, tensor.device());
  return on_storage(c10::Storage(c10::make_intrusive<c10::StorageImpl>(
                        c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(), std::move(address),
                        /*allocator=*/nullptr, /*resizable=*/false)),
                    tensor);
}

}  // namespace npu_emulator
