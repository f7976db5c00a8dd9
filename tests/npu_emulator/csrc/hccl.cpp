// SPDX-License-Identifier: Apache-2.0
#include "hccl.h"

#include "graphs.h"

namespace npu_emulator {
namespace {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A collective that graphs may hold: `run` is kept and called again at each replay, on the same tensors.
template <class F>
WorkPtr recordable(const char* name, Tensors tensors, F run) {
  check_stream_runs(name);
  if (recording()) {
    for (auto& tensor : tensors) tensor = recorded(tensor);
    Node node{Node::Kind::Call, name};
    node.arguments.emplace_back(c10::List<at::Tensor>(tensors));
    node.call = [tensors, run]() mutable { run(tensors)->wait(); };
    add_node(std::move(node));
  } else {
    counters::add(counters::Kind::Launch, name);
  }
  return run(tensors);
}

void issue(const char* name) {
  TORCH_CHECK(!recording(), name, ": not emulated while capturing an NPU graph");
  check_stream_runs(name);
  counters::add(counters::Kind::Launch, name);
}

class HCCL : public c10d::Backend {
 public:
  explicit HCCL(c10::intrusive_ptr<c10d::Backend> gloo)
      : c10d::Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}
  const std::string getBackendName() const override { return "hccl"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return recordable("hccl::broadcast", tensors, [gloo = gloo_, options](Tensors& t) {
      auto aliases = as_cpu(t);
      return gloo->broadcast(aliases, options);
    });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return recordable("hccl::allreduce", tensors, [gloo = gloo_, options](Tensors& t) {
      auto aliases = as_cpu(t);
      return gloo->allreduce(aliases, options);
    });
  }
  WorkPtr _allgather_base(at::Tensor& to, at::Tensor& from, const c10d::AllgatherOptions& options) override {
    return recordable("hccl::_allgather_base", {to, from}, [gloo = gloo_, options](Tensors& t) {
      auto aliases = as_cpu(t);
      return gloo->_allgather_base(aliases[0], aliases[1], options);
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& to, at::Tensor& from, const c10d::ReduceScatterOptions& options) override {
    return recordable("hccl::_reduce_scatter_base", {to, from}, [gloo = gloo_, options](Tensors& t) {
      auto aliases = as_cpu(t);
      return gloo->_reduce_scatter_base(aliases[0], aliases[1], options);
    });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    issue("hccl::reduce");
    auto aliases = as_cpu(tensors);
    return gloo_->reduce(aliases, options);
  }
  WorkPtr allgather(TensorLists& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    issue("hccl::allgather");
    auto outputs = as_cpu(to);
    auto inputs = as_cpu(from);
    return gloo_->allgather(outputs, inputs, options);
  }
  WorkPtr gather(TensorLists& to, Tensors& from, const c10d::GatherOptions& options) override {
    issue("hccl::gather");
    auto outputs = as_cpu(to);
    auto inputs = as_cpu(from);
    return gloo_->gather(outputs, inputs, options);
  }
  WorkPtr scatter(Tensors& to, TensorLists& from, const c10d::ScatterOptions& options) override {
    issue("hccl::scatter");
    auto outputs = as_cpu(to);
    auto inputs = as_cpu(from);
    return gloo_->scatter(outputs, inputs, options);
  }
  WorkPtr reduce_scatter(Tensors& to, TensorLists& from, const c10d::ReduceScatterOptions& options) override {
    issue("hccl::reduce_scatter");
    auto outputs = as_cpu(to);
    auto inputs = as_cpu(from);
    return gloo_->reduce_scatter(outputs, inputs, options);
  }
  WorkPtr alltoall_base(at::Tensor& to, at::Tensor& from, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    issue("hccl::alltoall_base");
    auto output = as_cpu(to), input = as_cpu(from);
    return gloo_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr alltoall(Tensors& to, Tensors& from, const c10d::AllToAllOptions& options) override {
    issue("hccl::alltoall");
    auto outputs = as_cpu(to), inputs = as_cpu(from);
    return gloo_->alltoall(outputs, inputs, options);
  }
  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    issue("hccl::send");
    auto aliases = as_cpu(tensors);
    return gloo_->send(aliases, destination, tag);
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    issue("hccl::recv");
    auto aliases = as_cpu(tensors);
    return gloo_->recv(aliases, source, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    issue("hccl::recv_any_source");
    auto aliases = as_cpu(tensors);
    return gloo_->recvAnysource(aliases, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    TORCH_CHECK(!recording(), "hccl::barrier: not emulated while capturing an NPU graph");
    c10d::BarrierOptions on_host;  // the device list of the options names npus, which gloo refuses
    on_host.timeout = options.timeout;
    return gloo_->barrier(on_host);
  }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_hccl(c10::intrusive_ptr<c10d::Backend> gloo) {
  return c10::make_intrusive<HCCL>(std::move(gloo));
}

}  // namespace npu_emulator
