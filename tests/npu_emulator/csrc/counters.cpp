// SPDX-License-Identifier: Apache-2.0
#include "counters.h"

#include <pthread.h>

#include <mutex>
#include <unordered_map>

namespace npu_emulator::counters {
namespace {

std::mutex mutex;
std::vector<Event> log_;
std::vector<std::string> names_;
std::unordered_map<std::string, int32_t> name_index;
std::function<void(size_t)> observer_;

int32_t intern(const std::string& name) {
  auto [entry, is_new] = name_index.try_emplace(name, static_cast<int32_t>(names_.size()));
  if (is_new) names_.push_back(name);
  return entry->second;
}

bool waits_or_copies(Kind kind) {
  return kind == Kind::DeviceToHost || kind == Kind::HostToDevice || kind == Kind::Synchronize;
}

}  // namespace

thread_local int InsideOperator::depth = 0;
std::atomic<int> recorders{0};

void append(Kind kind, const std::string& name, int64_t bytes, bool non_blocking) {
  std::function<void(size_t)> observer;
  size_t number;
  {
    std::lock_guard lock(mutex);
    number = log_.size();
    log_.push_back({kind, intern(name), non_blocking, bytes, static_cast<uint64_t>(pthread_self())});
    if (waits_or_copies(kind)) observer = observer_;
  }
  if (observer) observer(number);
}

size_t start() {
  std::lock_guard lock(mutex);
  if (recorders++ == 0) log_.clear();
  return log_.size();
}
void stop() { --recorders; }
size_t size() {
  std::lock_guard lock(mutex);
  return log_.size();
}
std::vector<Event> events_since(size_t first) {
  std::lock_guard lock(mutex);
  return {log_.begin() + std::min(first, log_.size()), log_.end()};
}
std::vector<std::string> names() {
  std::lock_guard lock(mutex);
  return names_;
}
void set_observer(std::function<void(size_t)> observer) {
  std::lock_guard lock(mutex);
  observer_ = std::move(observer);
}

}  // namespace npu_emulator::counters
