// SPDX-License-Identifier: Apache-2.0
// Host memory that stands for device memory, and the pools of captured graphs.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "device.h"

namespace npu_emulator {
namespace {

constexpr int kPoisonByte = 0x7f;
constexpr size_t kAlignment = 64;
constexpr size_t kPoolGranularity = 512;

std::atomic<int64_t> allocated{0}, peak{0};
bool poison = false;

char* host_memory(size_t bytes) {
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, kAlignment, bytes) == 0, "NPU out of memory (emulated): ", bytes, " bytes");
  return static_cast<char*>(memory);
}

// Blocks that are freed serve later allocations of the same pool and are never given back, as on the device.
class Pool {
 public:
  bool has(const void* address) const {
    auto* byte = static_cast<const char*>(address);
    auto block = blocks_.upper_bound(const_cast<char*>(byte));
    return block != blocks_.begin() && (--block, byte < block->first + block->second);
  }
  char* take(size_t bytes) {
    auto found = free_.lower_bound(bytes);
    if (found != free_.end() && found->first <= 4 * bytes) {
      char* memory = found->second;
      free_.erase(found);
      return memory;
    }
    char* memory = host_memory(bytes);
    blocks_[memory] = bytes;
    return memory;
  }
  void give_back(char* memory) { free_.emplace(blocks_.at(memory), memory); }
  void fill() {
    for (auto& [memory, bytes] : blocks_) std::memset(memory, kPoisonByte, bytes);
  }

 private:
  std::multimap<size_t, char*> free_;
  std::map<char*, size_t> blocks_;
};

std::mutex pools_mutex;  // tensors of a pool may die on any thread
std::map<int64_t, Pool> pools;
Pool* capture_pool = nullptr;

struct Block {
  char* memory;
  size_t bytes;
  Pool* pool;  // null: ordinary memory
};

void free_block(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  if (block->pool) {
    std::lock_guard lock(pools_mutex);
    block->pool->give_back(block->memory);
    return;
  }
  allocated -= block->bytes;
  std::free(block->memory);
}

Block* new_block(size_t bytes) {
  if (bytes == 0) return new Block{nullptr, 0, nullptr};
  std::lock_guard lock(pools_mutex);
  if (capture_pool) {
    bytes = (bytes + kPoolGranularity - 1) / kPoolGranularity * kPoolGranularity;
    return new Block{capture_pool->take(bytes), bytes, capture_pool};
  }
  auto* block = new Block{host_memory(bytes), bytes, nullptr};
  allocated += bytes;
  peak = std::max(peak.load(), allocated.load());
  return block;
}

struct NPUAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    Block* block = new_block(bytes);
    if (poison && block->bytes) std::memset(block->memory, kPoisonByte, block->bytes);
    return {block->memory, block, &free_block, c10::Device(kNPU, current_device())};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

NPUAllocator allocator;
REGISTER_ALLOCATOR(kNPU, &allocator);

}  // namespace

c10::Allocator* npu_allocator() { return &allocator; }
int64_t memory_allocated() { return allocated; }
int64_t max_memory_allocated() { return peak; }
void reset_max_memory_allocated() { peak = allocated.load(); }
void set_poison(bool on) { poison = on; }

void allocate_from_pool(int64_t pool) {
  std::lock_guard lock(pools_mutex);
  capture_pool = &pools[pool];
}
void stop_allocating_from_pool() {
  std::lock_guard lock(pools_mutex);
  capture_pool = nullptr;
}
void poison_pool(int64_t pool) {
  std::lock_guard lock(pools_mutex);
  pools.at(pool).fill();
}
bool in_a_pool(const void* address) {
  std::lock_guard lock(pools_mutex);
  for (auto& [id, pool] : pools)
    if (pool.has(address)) return true;
  return false;
}

}  // namespace npu_emulator
