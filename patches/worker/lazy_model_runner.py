# SPDX-License-Identifier: Apache-2.0
"""worker.lazy_model_runner

What: the name ``NPUModelRunner`` in ``vllm_ascend.worker.worker`` looks the class up when it is called.
Why: the module takes the class when it is imported. A class put in its place later (by us, or by another
    plugin) would never be built.
How: a callable that resolves ``vllm_ascend.worker.model_runner_v1.NPUModelRunner`` at each call stands in
    for the class.
Until: vllm-ascend imports its model runner inside ``NPUWorker.init_device``, as it does already for its
    second model runner.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    # The name that is replaced, and who uses it.
    "vllm_ascend.worker.worker:NPUModelRunner",
    "vllm_ascend.worker.worker:NPUWorker.init_device",
)


class LazyClass:
    """Stands in for a class of another module, looked up by name at each use, never kept.

    It can be called and asked for attributes as the class can, and ``isinstance`` and ``issubclass`` answer
    as for the class.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _resolve(self) -> Any:
        return getattr(importlib.import_module(self._module), self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolve()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if "_module" not in vars(self):  # copy and pickle ask an object that is not set up yet
            raise AttributeError(name)
        return getattr(self._resolve(), name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._resolve())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._resolve())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._resolve(),)

    def __repr__(self) -> str:
        return f"<{self._module}.{self._name}, looked up at each use>"


def apply(edit: Edit) -> None:
    edit.set(edit.module, "NPUModelRunner", LazyClass("vllm_ascend.worker.model_runner_v1", "NPUModelRunner"))
