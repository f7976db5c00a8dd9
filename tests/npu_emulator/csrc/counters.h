// SPDX-License-Identifier: Apache-2.0
// A log of what the device was asked to do, kept only while somebody records.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace npu_emulator::counters {

enum class Kind : uint8_t { Launch, DeviceToHost, HostToDevice, Synchronize, GraphReplay, GraphNode, GraphUpdate };

struct Event {
  Kind kind;
  int32_t name;  // index into names()
  bool non_blocking;
  int64_t bytes;
  uint64_t thread;  // as threading.get_ident() tells it
};

// Work inside an operator belongs to that operator: while one of these lives, nothing is counted on this thread.
class InsideOperator {
 public:
  InsideOperator() { ++depth; }
  ~InsideOperator() { --depth; }
  InsideOperator(const InsideOperator&) = delete;
  static bool active() { return depth > 0; }
  // For Python, which cannot hold an object of automatic storage.
  static void enter() { ++depth; }
  static void leave() { --depth; }

 private:
  static thread_local int depth;
};

extern std::atomic<int> recorders;
void append(Kind kind, const std::string& name, int64_t bytes, bool non_blocking);
inline void add(Kind kind, const std::string& name, int64_t bytes = 0, bool non_blocking = false) {
  bool counts = recorders.load(std::memory_order_relaxed) > 0 && !InsideOperator::active();
  if (counts) append(kind, name, bytes, non_blocking);
}

// Events are numbered from the first one that a group of overlapping recordings saw.
size_t start();
void stop();
size_t size();
std::vector<Event> events_since(size_t first);
std::vector<std::string> names();
// Called, outside every lock, with the number of each copy or synchronize event; null: not called.
void set_observer(std::function<void(size_t)> observer);

}  // namespace npu_emulator::counters
