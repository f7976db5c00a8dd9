// SPDX-License-Identifier: Apache-2.0
#include "graphs.h"

#include <deque>
#include <map>

namespace npu_emulator {
namespace {

std::shared_ptr<Graph> captured;                // the graph being captured
std::unique_ptr<std::vector<Node>> task_update;  // nodes of the task group being updated

struct Replay {
  std::shared_ptr<Graph> graph;
  size_t next = 0;
};
int64_t current_stream = 0;
std::map<int64_t, std::deque<Replay>> pending;  // stream -> replays, the first of which waits for an event

void store_result(const std::string& name, const at::Tensor& to, const at::Tensor& from) {
  if (!to.defined() || !from.defined() || to.storage().data() == from.storage().data()) return;
  TORCH_CHECK(to.sizes() == from.sizes(), name, ": the output's shape changed between capture and replay, from ",
              to.sizes(), " to ", from.sizes());
  copy_contents(to, from);
}

void run_operator(const Node& node) {
  torch::jit::Stack stack(node.arguments.begin(), node.arguments.end());
  run_on_device(*node.op, &stack);
  for (size_t i = 0; i < node.results.size(); ++i) {
    const auto& to = node.results[i];
    if (to.isTensor()) {
      store_result(node.name, to.toTensor(), stack[i].toTensor());
    } else if (to.isTensorList()) {
      auto targets = to.toTensorVector(), values = stack[i].toTensorVector();
      for (size_t j = 0; j < targets.size(); ++j) store_result(node.name, targets[j], values[j]);
    }
  }
}

void run_node(const Node& node) {
  counters::add(counters::Kind::GraphNode, node.name);
  counters::InsideOperator inside;
  switch (node.kind) {
    case Node::Kind::Call: return node.call();
    case Node::Kind::Copy: return copy_contents(node.destination, node.source);
    default: return run_operator(node);
  }
}

void run_pending(int64_t stream) {
  auto entry = pending.find(stream);
  if (entry == pending.end()) return;
  auto& replays = entry->second;
  try {
    for (; !replays.empty(); replays.pop_front())
      if (!replays.front().graph->run(replays.front().next)) return;
  } catch (...) {
    pending.erase(stream);  // the stream is usable again, as after a device error that was handled
    throw;
  }
  pending.erase(stream);
}

}  // namespace

// ---------------------------------------------------------------- Graph
void Graph::append(Node node) {
  bool joins_group = open_group_ != kNoGroup && !slots_.empty() && slots_.back().task_group == open_group_;
  if (!joins_group) slots_.push_back({{}, open_group_});
  slots_.back().nodes.push_back(std::move(node));
}
void Graph::begin_task_group() {
  TORCH_CHECK(open_group_ == kNoGroup, "graph_task_group_begin inside a task group");
  open_group_ = groups_++;
}
int Graph::end_task_group() {
  TORCH_CHECK(open_group_ != kNoGroup, "graph_task_group_end without graph_task_group_begin");
  bool has_nodes = !slots_.empty() && slots_.back().task_group == open_group_;
  group_signatures_.push_back(has_nodes ? signature(slots_.back().nodes) : "");
  return std::exchange(open_group_, kNoGroup);
}
void Graph::replace_task_group(int group, std::vector<Node> nodes) {
  const auto& expected = group_signatures_.at(group);
  TORCH_CHECK(signature(nodes) == expected, "task group update: captured [", expected, "], updated with [",
              signature(nodes), "]");
  for (auto& slot : slots_)
    if (slot.task_group == group) slot.nodes = nodes;
}
std::string Graph::signature(const std::vector<Node>& nodes) {
  std::string names;
  for (auto& node : nodes) names += node.name + ";";
  return names;
}

template <class F>
void Graph::for_each_recorded_tensor(F f) const {
  for (auto& slot : slots_)
    for (auto& node : slot.nodes) {
      auto visit = [&](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.has_storage() && tensor.is_privateuseone()) f(tensor, node);
      };
      for (auto& value : node.arguments) for_each_tensor(value, visit);
      for (auto& value : node.results) for_each_tensor(value, visit);
      visit(node.source);
      visit(node.destination);
    }
}
void Graph::finish() {
  TORCH_CHECK(open_group_ == kNoGroup, "the capture ended inside a task group");
  for_each_recorded_tensor([&](const at::Tensor& tensor, const Node&) {
    if (!in_a_pool(tensor.storage().data())) ++external_[tensor.storage().unsafeGetStorageImpl()];
  });
}
std::vector<std::string> Graph::dangling() const {
  auto is_dangling = [](const auto& entry) {
    return static_cast<int>(c10::raw::intrusive_ptr::use_count(entry.first)) <= entry.second;
  };
  std::vector<std::string> found;
  if (std::none_of(external_.begin(), external_.end(), is_dangling)) return found;  // asked before every replay
  for_each_recorded_tensor([&](const at::Tensor& tensor, const Node& node) {
    auto entry = external_.find(tensor.storage().unsafeGetStorageImpl());
    if (entry != external_.end() && is_dangling(*entry))
      found.push_back(c10::str(node.name, " ", tensor.sizes(), " ", tensor.dtype()));
  });
  return found;
}
std::vector<std::string> Graph::names() const {
  std::vector<std::string> all;
  for (auto& slot : slots_)
    for (auto& node : slot.nodes) all.push_back(node.name);
  return all;
}

bool Graph::run(size_t& next) {
  for (; next < slots_.size(); ++next)
    for (auto& node : slots_[next].nodes) {
      if (node.kind == Node::Kind::Wait) {
        if (!node.event->set) return false;
      } else if (node.kind == Node::Kind::Reset) {
        node.event->set = false;
      } else {
        run_node(node);
      }
    }
  return true;
}

// ---------------------------------------------------------------- capture
void capture_begin(std::shared_ptr<Graph> graph, int64_t pool) {
  TORCH_CHECK(!captured, "a capture begins while another graph is being captured");
  graph->pool = pool;
  allocate_from_pool(pool);
  captured = std::move(graph);
}
void capture_end(bool poison) {
  captured_graph().finish();
  // The device does not run what it captures: the pool holds no results yet.
  if (poison) poison_pool(captured->pool);
  capture_abort();
}
void capture_abort() {
  stop_allocating_from_pool();
  captured.reset();
}
bool capturing() { return captured != nullptr; }
bool recording() { return captured && !counters::InsideOperator::active(); }
Graph& captured_graph() {
  TORCH_CHECK(captured, "no NPU graph is being captured");
  return *captured;
}
void add_node(Node node) {
  if (task_update) {
    task_update->push_back(std::move(node));
  } else {
    captured_graph().append(std::move(node));
  }
}
at::Tensor recorded(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return tensor;
  if (tensor.is_privateuseone() && in_a_pool(tensor.storage().data())) return weak_reference(tensor);
  return on_storage(c10::Storage(tensor.storage()), tensor);
}

void update_begin() {
  TORCH_CHECK(!task_update, "graph_task_update_begin inside a task group update");
  task_update = std::make_unique<std::vector<Node>>();
}
void update_end(Graph& graph, int group) {
  TORCH_CHECK(task_update, "graph_task_update_end without graph_task_update_begin");
  auto nodes = std::move(*task_update);
  task_update.reset();
  graph.replace_task_group(group, std::move(nodes));
  counters::add(counters::Kind::GraphUpdate, "graph_task_update");
}
bool updating() { return task_update != nullptr; }

// ---------------------------------------------------------------- replay
void set_stream(int64_t stream) { current_stream = stream; }
void replay(std::shared_ptr<Graph> graph) {
  TORCH_CHECK(!captured, "a graph is replayed while another is being captured");
  counters::add(counters::Kind::GraphReplay, "graph_replay");
  bool idle = !pending.count(current_stream);
  pending[current_stream].push_back({std::move(graph)});
  if (idle) run_pending(current_stream);
}
void resume_replays() {
  std::vector<int64_t> streams;
  for (auto& entry : pending) streams.push_back(entry.first);
  for (auto stream : streams) run_pending(stream);
}
bool replay_pending(int64_t stream) { return stream < 0 ? !pending.empty() : pending.count(stream) > 0; }
void check_stream_runs(const std::string& name) {
  if (counters::InsideOperator::active() || pending.empty()) return;
  TORCH_CHECK(!pending.count(current_stream), "emulated NPU: ", name, " is issued on stream ", current_stream,
              " while a graph replay on it waits for an ExternalEvent that nobody recorded (a hang on the device)");
}

}  // namespace npu_emulator
