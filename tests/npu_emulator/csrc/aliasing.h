// SPDX-License-Identifier: Apache-2.0
// The same memory seen from the other device: npu operators run CPU kernels on CPU aliases of npu tensors.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "device.h"

namespace npu_emulator {

// Tensors that are not on the other device come back unchanged; the alias keeps the memory alive.
at::Tensor as_cpu(const at::Tensor& tensor);
at::Tensor as_npu(const at::Tensor& tensor, c10::DeviceIndex index = -1);
std::vector<at::Tensor> as_cpu(const std::vector<at::Tensor>& tensors);
std::vector<std::vector<at::Tensor>> as_cpu(const std::vector<std::vector<at::Tensor>>& tensors);

// A tensor of the same device, type and geometry as `like` on `storage`.
at::Tensor on_storage(c10::Storage storage, const at::Tensor& like);
// The address without the ownership.
at::Tensor weak_reference(const at::Tensor& tensor);

inline void copy_contents(const at::Tensor& to, const at::Tensor& from) { as_cpu(to).copy_(as_cpu(from)); }

// ---------------------------------------------------------------- tensors inside operator arguments
template <class F>
c10::IValue map_tensors(const c10::IValue& value, F f) {
  if (value.isTensor()) return c10::IValue(f(value.toTensor()));
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) mapped.push_back(f(tensor));
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const auto& tensor : value.toOptionalTensorVector())
      mapped.push_back(tensor.has_value() ? std::optional<at::Tensor>(f(*tensor)) : std::nullopt);
    return mapped;
  }
  return value;
}

template <class F>
void for_each_tensor(const c10::IValue& value, F f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) f(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector())
      if (tensor.has_value()) f(*tensor);
  }
}

}  // namespace npu_emulator
