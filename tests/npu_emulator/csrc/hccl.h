// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace npu_emulator {

// A backend named hccl for npu tensors, whose work `gloo` does on their CPU aliases.
c10::intrusive_ptr<c10d::Backend> make_hccl(c10::intrusive_ptr<c10d::Backend> gloo);

}  // namespace npu_emulator
