// SPDX-License-Identifier: Apache-2.0
// torch_npu._emulator: what the Python side of the emulator is made of.
#include <ATen/EmptyTensor.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "device.h"
#include "fallback.h"
#include "graphs.h"
#include "hccl.h"

namespace py = pybind11;
using namespace npu_emulator;

namespace {

void bind_device(py::module& m) {
  m.def("as_cpu", [](const at::Tensor& tensor) { return as_cpu(tensor); });
  m.def("as_npu", [](const at::Tensor& tensor) { return as_npu(tensor); });
  m.def("set_device", &set_current_device);
  m.def("current_device", [] { return int(current_device()); });
  m.def("device_count", &device_count);
  m.def("default_generator", [](int index) { return default_generator(index); });
  m.def("memory_allocated", &memory_allocated);
  m.def("max_memory_allocated", &max_memory_allocated);
  m.def("reset_max_memory_allocated", &reset_max_memory_allocated);
  m.def("set_poison", &set_poison);
  m.def("set_strict", &set_strict);
  m.def("make_hccl", &make_hccl);
}

void bind_operators(py::module& m) {
  // Around the body of an operator written in Python: the operators it uses are part of it.
  m.def("enter_operator", &counters::InsideOperator::enter);
  m.def("leave_operator", &counters::InsideOperator::leave);
  m.def("inside_operator", &counters::InsideOperator::active);
  m.def("check_stream_runs", &check_stream_runs);
  m.def("weak_reference", [](const at::Tensor& tensor) {
    return tensor.is_privateuseone() ? weak_reference(tensor) : tensor;
  });
  m.def("pool_empty_like", [](const at::Tensor& like) {
    return at::Tensor(at::detail::empty_strided_generic(like.sizes(), like.strides(), npu_allocator(), kNPUKeys,
                                                        like.scalar_type()));
  });
}

void bind_graphs(py::module& m) {
  py::class_<ExternalEvent, std::shared_ptr<ExternalEvent>>(m, "ExternalEvent")
      .def(py::init<>())
      .def_readwrite("set", &ExternalEvent::set);
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph")
      .def(py::init<>())
      .def("dangling", &Graph::dangling)
      .def("names", &Graph::names);
  m.def("capture_begin", &capture_begin);
  m.def("capture_end", &capture_end);
  m.def("capture_abort", &capture_abort);
  m.def("capturing", &capturing);
  m.def("recording", &recording);
  m.def("recorded", [](const at::Tensor& tensor) { return recorded(tensor); });
  m.def("add_call", [](const std::string& name, py::object function) {
    Node node{Node::Kind::Call, name};
    node.call = [function = std::move(function)] {
      py::gil_scoped_acquire gil;
      function();
    };
    add_node(std::move(node));
  });
  m.def("add_wait", [](std::shared_ptr<ExternalEvent> event) {
    Node node{Node::Kind::Wait, "WAIT"};
    node.event = std::move(event);
    add_node(std::move(node));
  });
  m.def("add_reset", [](std::shared_ptr<ExternalEvent> event) {
    Node node{Node::Kind::Reset, "RESET"};
    node.event = std::move(event);
    add_node(std::move(node));
  });
  m.def("task_group_begin", [] { captured_graph().begin_task_group(); });
  m.def("task_group_end", [] { return captured_graph().end_task_group(); });
  m.def("update_begin", &update_begin);
  m.def("update_end", [](std::shared_ptr<Graph> graph, int group) { update_end(*graph, group); });
  m.def("updating", &updating);
  m.def("set_stream", &set_stream);
  m.def("replay", &replay);
  m.def("resume_replays", &resume_replays);
  m.def("replay_pending", &replay_pending);
}

void bind_counters(py::module& m) {
  using counters::Kind;
  py::enum_<Kind>(m, "EventKind")
      .value("LAUNCH", Kind::Launch)
      .value("DEVICE_TO_HOST", Kind::DeviceToHost)
      .value("HOST_TO_DEVICE", Kind::HostToDevice)
      .value("SYNCHRONIZE", Kind::Synchronize)
      .value("GRAPH_REPLAY", Kind::GraphReplay)
      .value("GRAPH_NODE", Kind::GraphNode)
      .value("GRAPH_UPDATE", Kind::GraphUpdate);
  m.def("counters_start", &counters::start);
  m.def("counters_stop", &counters::stop);
  m.def("counters_size", &counters::size);
  m.def("counters_add", [](Kind kind, const std::string& name) { counters::add(kind, name); });
  m.def("counters_events_since", [](size_t first) {
    auto names = counters::names();
    py::list events;
    for (auto& event : counters::events_since(first))
      events.append(py::make_tuple(event.kind, names[event.name], event.bytes, event.non_blocking, event.thread));
    return events;
  });
  m.def("counters_set_observer", [](py::object observer) {
    if (observer.is_none()) return counters::set_observer(nullptr);
    // Kept for good: the last reference could otherwise be dropped by a thread without the GIL.
    auto* kept = new py::object(std::move(observer));
    counters::set_observer([kept](size_t number) {
      py::gil_scoped_acquire gil;
      (*kept)(number);
    });
  });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  register_hooks();
  bind_device(m);
  bind_operators(m);
  bind_graphs(m);
  bind_counters(m);
}
