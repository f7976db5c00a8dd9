// SPDX-License-Identifier: Apache-2.0
// ACL graphs. Capture runs the operators once, to learn shapes, and records them; replay runs the record on the
// same addresses. Streams run in order and at once, except that a replay stops where it waits for an event that is
// not set; recording the event lets it go on (vllm-ascend updates attention tasks after it launched the replay).
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "aliasing.h"
#include "counters.h"

namespace npu_emulator {

struct ExternalEvent {
  bool set = false;
};

struct Node {
  enum class Kind { Operator, Copy, Call, Wait, Reset };
  Kind kind;
  std::string name;
  // Operator: an ATen operator with its recorded arguments, and where its results go.
  std::optional<c10::OperatorHandle> op;
  std::vector<c10::IValue> arguments, results;
  // Copy
  at::Tensor source, destination;
  // Call: a Python operator or a collective, closed over its arguments.
  std::function<void()> call;
  // Wait, Reset
  std::shared_ptr<ExternalEvent> event;

  bool launches() const { return kind != Kind::Wait && kind != Kind::Reset; }
};

class Graph {
 public:
  void append(Node node);
  void begin_task_group();
  int end_task_group();
  // The update must issue the operators that were captured in the group, in their order.
  void replace_task_group(int group, std::vector<Node> nodes);
  // Counts the graph's own references to storages outside the pools, see dangling().
  void finish();
  // Recorded tensors outside the pools that nobody but this graph refers to: on the device they would be freed.
  std::vector<std::string> dangling() const;
  std::vector<std::string> names() const;
  // Runs from slot `next` on; false when it stops at an event that is not set.
  bool run(size_t& next);

  int64_t pool = 0;

 private:
  struct Slot {
    std::vector<Node> nodes;
    int task_group;  // kNoGroup, or the number of the group that this slot is
  };
  static constexpr int kNoGroup = -1;
  static std::string signature(const std::vector<Node>& nodes);
  template <class F>
  void for_each_recorded_tensor(F f) const;

  std::vector<Slot> slots_;
  std::vector<std::string> group_signatures_;
  int open_group_ = kNoGroup;
  int groups_ = 0;
  std::unordered_map<c10::StorageImpl*, int> external_;
};

// ---------------------------------------------------------------- capture
void capture_begin(std::shared_ptr<Graph> graph, int64_t pool);
void capture_end(bool poison);
void capture_abort();
bool capturing();
// True where an operator must be added to the graph: capturing, and not inside another operator.
bool recording();
Graph& captured_graph();
// Adds to the graph, or to the task group that is being updated.
void add_node(Node node);
// What a graph keeps of a tensor: of pool memory only the address.
at::Tensor recorded(const at::Tensor& tensor);

void update_begin();
void update_end(Graph& graph, int group);
bool updating();

// ---------------------------------------------------------------- replay
void set_stream(int64_t stream);
void replay(std::shared_ptr<Graph> graph);
void resume_replays();
bool replay_pending(int64_t stream);  // any stream when negative
// Raises when the current stream holds a replay that waits: the device would hang or defer what is issued now.
void check_stream_runs(const std::string& name);

// Runs an ATen operator whose arguments lie on the stack, see fallback.cpp.
void run_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace npu_emulator
