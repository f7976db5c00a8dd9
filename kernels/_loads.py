# SPDX-License-Identifier: Apache-2.0
"""How kernels load what they need only a part of."""

from __future__ import annotations

import inspect

from vllm.triton_utils import HAS_TRITON, tl, triton

if HAS_TRITON and "care_padding" in inspect.signature(tl.load).parameters:  # triton-ascend

    @triton.jit
    def load_inside(pointers, inside):  # type: ignore[no-untyped-def]
        """Load where `inside` is true; elsewhere is anything, which an NPU need not fill with zeros first."""
        return tl.load(pointers, mask=inside, care_padding=False)

else:

    @triton.jit
    def load_inside(pointers, inside):  # type: ignore[no-untyped-def]
        """Load where `inside` is true; elsewhere is anything."""
        return tl.load(pointers, mask=inside)
