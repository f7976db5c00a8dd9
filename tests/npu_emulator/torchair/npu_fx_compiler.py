# SPDX-License-Identifier: Apache-2.0
"""Names that vllm-ascend imports and uses only when it compiles for a real device."""

from __future__ import annotations

from .fx_summary import ValuePack, _unpack_meta, _unpack_meta_list

__all__ = ["ValuePack", "_NpuGraphConverter", "_unpack_meta", "_unpack_meta_list"]


class _NpuGraphConverter:
    """torchair's FX interpreter that lowers to GE graphs."""
