// SPDX-License-Identifier: Apache-2.0
// Every ATen operator without a kernel of its own: run the CPU kernel on CPU aliases of the npu tensors.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <set>

#include "graphs.h"

namespace npu_emulator {
namespace {

std::atomic<bool> strict{true};

using Names = std::set<std::string>;
bool contains(const Names& names, const c10::FunctionSchema& schema) { return names.count(schema.name()) > 0; }

// These take host tensors beside npu ones: PyTorch moves the indices to the device itself.
const Names kTakesHostTensors = {"aten::index",          "aten::index_put",      "aten::index_put_",
                                 "aten::_unsafe_index",  "aten::_unsafe_index_put", "aten::_index_put_impl_",
                                 "aten::copy_",          "aten::_copy_from",     "aten::nonzero_static",
                                 "aten::repeat_interleave"};
// The shape of the result depends on values, so the host waits for them.
const Names kShapeFromValues = {"aten::nonzero",     "aten::masked_select", "aten::unique_consecutive", "aten::_unique",
                                "aten::_unique2",    "aten::unique_dim",    "aten::bincount"};
// Under a mask they look for its true elements first.
const Names kWritesByIndex = {"aten::index_put", "aten::index_put_", "aten::_unsafe_index_put",
                              "aten::_index_put_impl_"};
// PyTorch's shape function for it has already asked for aten::nonzero of masks, and copied indices to the device.
const Names kCountedByItsParts = {"aten::index"};
// Return a host value that the device is not asked for.
const Names kMetadata = {"aten::is_set_to", "aten::is_pinned"};

bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

// Whether the host reads values back from the device in order to run `op` (arguments as the caller gave them).
bool reads_back(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  if (contains(kShapeFromValues, schema)) return true;
  if (schema.name() == "aten::repeat_interleave") {  // of a tensor of counts, without the size of the output
    return schema.overload_name() == "Tensor" && arguments[1].isNone();
  }
  if (!contains(kWritesByIndex, schema)) return false;
  int masks = 0, indices = 0;
  for_each_tensor(arguments[1], [&](const at::Tensor& index) {
    indices += index.defined();
    masks += is_mask(index);
  });
  // One mask and one number: PyTorch fills under the mask, which needs no indices.
  bool fills = masks == 1 && indices == 1 && arguments[2].toTensor().numel() == 1;
  return masks > 0 && !fills;
}

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

// One call of one operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : schema_(op.schema()), stack_(*stack), first_(stack->size() - schema_.arguments().size()) {}

  void run(const c10::OperatorHandle& op) {
    const bool record = recording();
    std::vector<c10::IValue> given;
    given.assign(stack_.begin() + first_, stack_.end());
    const bool waits = reads_back(schema_, given);
    arguments_to_cpu();
    if (!aliases_.empty()) {
      check_devices();
      check_stream_runs(schema_.name());
      TORCH_CHECK(!(record && waits), schema_.name(), ": synchronizes, not allowed while capturing an NPU graph");
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    for (auto& [npu, cpu] : aliases_) adopt_geometry(npu, cpu);
    results_to_npu();
    if (!launched()) return;
    if (record) {
      add_to_graph(op, given);
    } else {
      count(waits);
    }
  }

 private:
  // A result that aliases no argument, an argument that is written, or a host value: work was done.
  bool launched() const { return new_result_ || host_result_ || (schema_.is_mutable() && !aliases_.empty()); }

  void arguments_to_cpu() {
    for (size_t i = first_; i < stack_.size(); ++i) {
      auto& value = stack_[i];
      if (value.isDevice()) {
        if (value.toDevice().type() != kNPU) continue;
        if (aliases_.empty()) device_ = or_current(value.toDevice().index());
        value = c10::IValue(c10::Device(c10::kCPU));
      } else {
        value = map_tensors(value, [this](const at::Tensor& tensor) { return to_cpu(tensor); });
      }
    }
    for (size_t i = first_; i < stack_.size(); ++i) {  // last: the tensors say which device's default generator it is
      auto& value = stack_[i];
      if (value.isGenerator()) {
        auto generator = value.toGenerator();
        if (generator.defined() && generator.device().type() == kNPU) value = c10::IValue(cpu_generator_of(generator));
      } else if (value.isNone() && schema_.arguments()[i - first_].name() == "generator" && !aliases_.empty()) {
        value = c10::IValue(cpu_generator_of(default_generator(device_)));
      }
    }
  }

  at::Tensor to_cpu(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_privateuseone()) {
      if (tensor.is_cpu() && tensor.dim() > 0) host_tensors_.push_back(tensor);
      return tensor;
    }
    for (auto& [npu, cpu] : aliases_)
      if (npu.is_same(tensor)) return cpu;
    if (aliases_.empty()) device_ = tensor.device().index();
    TORCH_CHECK(!strict || tensor.device().index() == device_ || tensor.dim() == 0,
                "Expected all tensors to be on the same device, but found npu:", int(device_), " and ",
                tensor.device());
    aliases_.emplace_back(tensor, as_cpu(tensor));
    return aliases_.back().second;
  }

  void check_devices() const {
    bool is_aten = schema_.name().rfind("aten::", 0) == 0;  // operators of extensions say themselves what they take
    TORCH_CHECK(!strict || host_tensors_.empty() || !is_aten || contains(kTakesHostTensors, schema_),
                "Expected all tensors to be on the same device, but found npu:", int(device_), " and cpu (",
                full_name(schema_), ")");
  }

  // An out= or self argument that was resized: the npu tensor takes the new geometry and, if it grew, the new memory.
  void adopt_geometry(const at::Tensor& npu, const at::Tensor& cpu) const {
    if (npu.sizes() == cpu.sizes() && npu.strides() == cpu.strides()) return;
    auto* impl = npu.unsafeGetTensorImpl();
    const auto& to = npu.storage();
    const auto& from = cpu.storage();
    if (to.data() != from.data() || to.nbytes() < from.nbytes()) {
      if (recording()) {
        auto memory = npu_allocator()->allocate(from.nbytes());
        std::memcpy(memory.get(), from.data(), from.nbytes());
        impl->set_storage_keep_dtype(c10::Storage(c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t(), from.nbytes(), std::move(memory), npu_allocator(), true)));
      } else {
        impl->set_storage_keep_dtype(as_npu(cpu, device_).storage());
      }
    }
    impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
  }

  void results_to_npu() {
    for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i) {
      auto& value = stack_[i];
      if (value.isTensor() || value.isTensorList()) {
        value = map_tensors(value, [this](const at::Tensor& tensor) { return to_npu(tensor); });
      } else if (!aliases_.empty() && !contains(kMetadata, schema_)) {
        TORCH_CHECK(!recording(), schema_.name(), ": returns a host value, not allowed while capturing an NPU graph");
        host_result_ = true;
      }
    }
  }

  at::Tensor to_npu(const at::Tensor& result) {
    if (!result.defined() || !result.is_cpu()) return result;
    for (auto& [npu, cpu] : aliases_)
      if (cpu.is_same(result)) return npu;
    for (auto& [npu, cpu] : aliases_)
      if (result.has_storage() && cpu.storage().is_alias_of(result.storage())) return view_of(npu, result);
    new_result_ = true;
    if (!recording()) return as_npu(result, device_);
    at::Tensor in_pool = at::detail::empty_strided_generic(result.sizes(), result.strides(), npu_allocator(), kNPUKeys,
                                                           result.scalar_type());
    copy_contents(in_pool, result);
    return in_pool;
  }

  static at::Tensor view_of(const at::Tensor& npu, const at::Tensor& geometry) {
    auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(npu.storage()), kNPUKeys, geometry.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes(), geometry.strides(), geometry.storage_offset());
    return view;
  }

  void add_to_graph(const c10::OperatorHandle& op, const std::vector<c10::IValue>& given) const {
    Node node{Node::Kind::Operator, schema_.name(), op};
    auto record = [](const c10::IValue& value) { return map_tensors(value, recorded); };
    for (auto& value : given) node.arguments.push_back(record(value));
    for (size_t i = stack_.size() - schema_.returns().size(); i < stack_.size(); ++i)
      node.results.push_back(record(stack_[i]));
    add_node(std::move(node));
  }

  void count(bool waits) const {
    using counters::Kind;
    if (!aliases_.empty() && !contains(kCountedByItsParts, schema_))
      for (auto& tensor : host_tensors_) counters::add(Kind::HostToDevice, schema_.name(), tensor.nbytes());
    counters::add(Kind::Launch, schema_.name());
    if (waits && !aliases_.empty()) counters::add(Kind::DeviceToHost, schema_.name(), sizeof(int64_t));
    if (host_result_) counters::add(Kind::DeviceToHost, schema_.name(), 1);
  }

  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  const size_t first_;
  c10::DeviceIndex device_ = current_device();
  std::vector<std::pair<at::Tensor, at::Tensor>> aliases_;  // npu tensors of the call, and their CPU aliases
  std::vector<at::Tensor> host_tensors_;
  bool new_result_ = false, host_result_ = false;
};

}  // namespace

void set_strict(bool on) { strict = on; }

void run_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).run(op); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_device>());
}

// Operators without a derivative formula of their own go straight to the device.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace npu_emulator
