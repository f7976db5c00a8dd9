# SPDX-License-Identifier: Apache-2.0
"""The state that a process with the real hosts ends in: JSON values that say nothing of addresses or of the
order in which things happened."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

HOSTS = ("vllm", "vllm_ascend")

VLLM_PROPOSERS = "vllm.v1.spec_decode.eagle"
VLLM_DRAFT_MODEL = "vllm.v1.spec_decode.draft_model"
VLLM_MODEL_RUNNER = "vllm.v1.worker.gpu_model_runner"
ASCEND_PROPOSERS = "vllm_ascend.spec_decode.eagle_proposer"
MODEL_RUNNER = "vllm_ascend.worker.model_runner_v1"
WORKER = "vllm_ascend.worker.worker"
ENGINE_CORE = "vllm.v1.engine.core"
SCHEDULER = "vllm.v1.core.sched.scheduler"
# The targets that import each other.
TARGETS = (WORKER, VLLM_PROPOSERS, ASCEND_PROPOSERS, MODEL_RUNNER)

# All targets, and modules that take something from them or have a subclass of what they define.
HOLDERS = (
    *TARGETS,
    ENGINE_CORE,
    SCHEDULER,
    VLLM_DRAFT_MODEL,
    VLLM_MODEL_RUNNER,
    "vllm.v1.worker.gpu.spec_decode.eagle",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.spec_decode.utils",
    "vllm.v1.worker.gpu_input_batch",
    "vllm_ascend.ops.triton.reject_sample",
    "vllm_ascend.ops.triton.spec_decode.utils",
    "vllm_ascend.sample.rejection_sampler",
    "vllm_ascend.spec_decode",
    "vllm_ascend.spec_decode.medusa_proposer",
    "vllm_ascend.spec_decode.ngram_proposer",
    "vllm_ascend.worker.pcp_utils",
    "vllm_ascend.worker.v2.spec_decode.eagle",
    "vllm_ascend.xlite.xlite_model_runner",
    "vllm_ascend.xlite.xlite_worker",
    "vllm_ascend._310p.model_runner_310p",
    "vllm_ascend._310p.worker_310p",
)

METHODS = ("ngram", "suffix", "medusa", "eagle", "eagle3", "mtp", "draft_model")

# What proposers are asked to be an instance of, where it exists.
ASKED = (
    (VLLM_PROPOSERS, "SpecDecodeBaseProposer"),
    (VLLM_PROPOSERS, "EagleProposer"),
    (VLLM_DRAFT_MODEL, "DraftModelProposer"),
    (ASCEND_PROPOSERS, "SpecDecodeBaseProposer"),
    (ASCEND_PROPOSERS, "AscendEagleProposer"),
    (ASCEND_PROPOSERS, "AscendDraftModelProposer"),
    (MODEL_RUNNER, "AscendEagleProposer"),
    (VLLM_MODEL_RUNNER, "EagleProposer"),
    (VLLM_MODEL_RUNNER, "DraftModelProposer"),
)


@dataclass(frozen=True)
class Change:
    """One ``edit.set``. ``old`` is what the owner itself had, None where it had nothing; ``followed`` is
    whether whoever else holds ``old`` is to be given ``new``."""

    owner: Any
    name: str
    old: Any
    new: Any
    followed: bool

    @property
    def path(self) -> str:
        return f"{_path(self.owner)}.{self.name}"


_changes: list[Change] = []


def record_changes() -> None:
    """From here on, keep what patches set: a record of its own, for one that must not trust the engine's."""
    from ascend_specpatch.edits import Edit

    set_ = Edit.set
    if set_.__module__ == __name__:
        return

    def recording_set(self: Edit, owner: Any, name: str, value: Any, *, aliases: bool = True) -> None:
        old = getattr(owner, "__dict__", {}).get(name)
        set_(self, owner, name, value, aliases=aliases)
        _changes.append(Change(owner, name, old, value, aliases and _is_at_home(owner, old)))

    Edit.set = recording_set  # type: ignore[method-assign]


def _is_at_home(owner: Any, old: Any) -> bool:
    """Whether an object is replaced where it is defined. A name that a module merely imported concerns that
    module alone, and equal numbers or tuples are no aliases."""
    if not (isinstance(old, (type, FunctionType)) or hasattr(type(old), "__getitem__")):
        return False
    return isinstance(owner, type) or getattr(old, "__module__", None) == owner.__name__


def state() -> dict[str, Any]:
    """Where the process stands once all HOLDERS are imported. Proposers cannot be built properly afterwards.

    failed: what could not be imported. digest, patches: of the report. new, stale: the places in the hosts
    that hold something which a patch put there or replaced, by its name. runners: the class that the name
    NPUModelRunner gives in each module. proposers: by method, the classes of what NPUModelRunner builds, and
    what it is an instance of.
    """
    from ascend_specpatch import report

    failed = {}
    for name in HOLDERS:
        try:
            importlib.import_module(name)
        # A host module may fail in any way: part of the state.
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    new = {id(change.new): change.path for change in reversed(_changes) if _is_ours(change)}
    old = {id(change.old): change.path for change in _changes if change.followed}
    places = _places({**new, **old})
    # By name; of two patches that wrap the same thing, what stands there is the second one's.
    names = sorted(new.items(), key=lambda item: (item[1], item[0] in places))
    current = report.current()
    return {
        "failed": failed,
        "digest": current.digest(),
        "patches": {row.id: str(row.state) for row in current.rows()},
        "new": {name: places.get(key, []) for key, name in names},
        "stale": {name: places[key] for key, name in old.items() if key in places},
        "runners": _runners(),
        "proposers": _proposers(),
    }


def _is_ours(change: Change) -> bool:
    """Whether a change put a new object into a host, and is not an alias that followed."""
    at_home = change.followed or change.old is None
    return at_home and (isinstance(change.new, (type, FunctionType)) or _is_kernel(change.new))


def _is_kernel(value: Any) -> bool:
    return type(value).__module__.startswith("ascend_specpatch.kernels.")


def _runners() -> dict[str, str]:
    right = sys.modules[MODEL_RUNNER].NPUModelRunner
    found = {}
    for name, module in _host_modules():
        value = vars(module).get("NPUModelRunner")
        if value is not None and ".v2." not in name:  # vllm-ascend's other model runner, of the same name
            cls = value if isinstance(value, type) else value.__mro_entries__(())[0]
            found[name] = _path(cls) if cls is right else f"another {_path(cls)}"
    return found


def _proposers() -> dict[str, Any]:
    get_spec_decode_method = sys.modules[MODEL_RUNNER].get_spec_decode_method
    for module in (sys.modules["vllm_ascend.spec_decode"], sys.modules[ASCEND_PROPOSERS]):
        for cls in list(vars(module).values()):
            if isinstance(cls, type) and cls.__name__.endswith("Proposer"):
                cls.__init__ = lambda self, *args, **kwargs: None  # type: ignore[misc]  # its class is looked at
    found: dict[str, Any] = {}
    for method in METHODS:
        try:
            built = get_spec_decode_method(method, None, None, None)
        except ValueError as error:
            found[method] = {"error": str(error)}
        else:
            found[method] = {
                "class": [_path(cls) for cls in type(built).__mro__ if cls is not object],
                "is": [
                    f"{module}.{name}"
                    for module, name in ASKED
                    if isinstance(built, getattr(sys.modules[module], name, ()))
                ],
            }
    return found


def _places(objects: dict[int, str]) -> dict[int, list[str]]:
    """Where in the hosts the objects of those ids are held."""
    found: dict[int, list[str]] = {}
    for place, value in _held():
        if id(value) in objects:
            found.setdefault(id(value), []).append(place)
    return {key: sorted(places) for key, places in found.items()}


def _held() -> Iterator[tuple[str, Any]]:
    """Everything that host modules hold, and the place: globals, what is in containers, partials and default
    values there, members and bases of the hosts' classes."""
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = []
    for name, module in _host_modules():
        todo.extend((f"{name}.{key}", value) for key, value in vars(module).items())
    while todo:
        place, value = todo.pop()
        yield place, value
        kind = type(value)
        if kind in _LEAVES or id(value) in seen:
            continue
        seen.add(id(value))
        if kind in (list, tuple, set, frozenset):
            todo.extend((f"{place}[]", inner) for inner in value)
        elif isinstance(value, dict):
            todo.extend((f"{place}[{key!r}]", inner) for key, inner in list(value.items()))
        elif kind is FunctionType:
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            todo.extend((f"{place}()", inner) for inner in defaults)
        elif isinstance(value, functools.partial):
            todo.append((f"{place} partial", [value.func, value.args, value.keywords]))
        elif isinstance(value, (staticmethod, classmethod)):
            todo.append((place, value.__func__))
        elif isinstance(value, type) and value.__module__.partition(".")[0] in HOSTS:
            cls = _path(value)
            todo.extend((f"{cls}.{key}", inner) for key, inner in vars(value).items())
            todo.extend((f"{cls} base", base) for base in value.__bases__)


_LEAVES = frozenset({str, int, float, bool, bytes, type(None), ModuleType})


def _host_modules() -> list[tuple[str, ModuleType]]:
    return sorted(
        (name, module)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in HOSTS and isinstance(module, ModuleType)
    )


def _path(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    return f"{value.__module__}.{value.__qualname__}"
