// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace npu_emulator {

// On (the default): operators that mix npu and host tensors raise, as they do on the device.
void set_strict(bool on);

}  // namespace npu_emulator
