// SPDX-License-Identifier: Apache-2.0
// The npu device: which one is current, and how its memory is handed out.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

namespace npu_emulator {

constexpr auto kNPU = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet kNPUKeys(c10::DispatchKey::PrivateUse1);

// NPU_EMU_DEVICE_COUNT, 8 by default: a server of eight cards.
int device_count();
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);
inline c10::DeviceIndex or_current(c10::DeviceIndex index) { return index < 0 ? current_device() : index; }

const at::Generator& default_generator(c10::DeviceIndex index);
// The CPU generator that an npu generator draws its numbers from.
at::Generator cpu_generator_of(const at::Generator& npu_generator);
void register_hooks();

// ------------------------------------------------------------------ memory
c10::Allocator* npu_allocator();
int64_t memory_allocated();
int64_t max_memory_allocated();
void reset_max_memory_allocated();
// Fresh memory is filled with 0x7f, so that a read of what nobody wrote shows.
void set_poison(bool on);

// A graph pool owns its addresses for good: a captured graph keeps addresses, not tensors.
void allocate_from_pool(int64_t pool);
void stop_allocating_from_pool();
void poison_pool(int64_t pool);
bool in_a_pool(const void* address);

}  // namespace npu_emulator
