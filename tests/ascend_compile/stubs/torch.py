# SPDX-License-Identifier: Apache-2.0
"""Stands for torch while kernel files are imported to be compiled: any attribute is only a name."""

from typing import Any


class _Name:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("tests/ascend_compile/stubs/torch.py is not torch: kernels are only compiled here")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Name()
