// SPDX-License-Identifier: Apache-2.0
// What PyTorch asks of a device backend: guard, hooks, random generators.
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <cstring>

#include "counters.h"

namespace npu_emulator {
namespace {

thread_local c10::DeviceIndex current = 0;

// Streams run in order and at once, so every stream is the default one to PyTorch and every event has happened.
struct NPUGuard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream default_stream(c10::Device device) {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kNPU, or_current(device.index())));
  }
  c10::DeviceType type() const override { return kNPU; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {kNPU, current}; }
  void setDevice(c10::Device device) const override { current = or_current(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = or_current(device.index()); }
  c10::Stream getStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return default_stream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return default_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return default_stream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (event && !*event) *event = reinterpret_cast<void*>(1);  // not null: the event was recorded
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { counters::add(counters::Kind::Synchronize, "stream"); }
  void synchronizeEvent(void*) const override { counters::add(counters::Kind::Synchronize, "event"); }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    counters::add(counters::Kind::Synchronize, "device");
  }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0.; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, NPUGuard);

// An npu generator is a CPU generator under another device.
struct NPUGenerator : c10::GeneratorImpl {
  at::Generator cpu = at::detail::createCPUGenerator();
  explicit NPUGenerator(c10::DeviceIndex index) : c10::GeneratorImpl(c10::Device(kNPU, index), kNPUKeys) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t) override {}  // a Philox notion: the CPU's Mersenne twister has no offset
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  static c10::DeviceType device_type() { return kNPU; }

 private:
  NPUGenerator* clone_impl() const override {
    auto* copy = new NPUGenerator(device().index());
    copy->cpu = at::Generator(cpu.unsafeGetGeneratorImpl()->clone());
    return copy;
  }
};

struct NPUHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<NPUGenerator>(or_current(index));
  }
  c10::Device getDeviceFromPtr(void*) const override { return {kNPU, current}; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto memory = npu_allocator()->allocate(bytes);
    if (auto keep = std::min(bytes, storage.nbytes())) std::memcpy(memory.get(), storage.data(), keep);
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(memory));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
};

}  // namespace

int device_count() {
  const char* count = std::getenv("NPU_EMU_DEVICE_COUNT");
  return count ? std::atoi(count) : 8;
}
c10::DeviceIndex current_device() { return current; }
void set_current_device(c10::DeviceIndex index) { current = index; }

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const std::vector<at::Generator> generators = [] {
    std::vector<at::Generator> all;
    for (int i = 0; i < device_count(); ++i) all.push_back(at::make_generator<NPUGenerator>(i));
    return all;
  }();
  return generators.at(or_current(index));
}
at::Generator cpu_generator_of(const at::Generator& npu_generator) {
  return static_cast<NPUGenerator*>(npu_generator.unsafeGetGeneratorImpl())->cpu;
}
void register_hooks() {
  static NPUHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace npu_emulator
