# SPDX-License-Identifier: Apache-2.0
"""What is looked at inside the worker process: the drafter's calls, its types, the patch report.

``install`` and ``collect`` are sent to every worker by ``LLM.collective_rpc``, so the same code serves
one process, several processes and tensor parallelism. It wraps instances from outside and changes
no result.
"""

from __future__ import annotations

import base64
import functools
import importlib
import importlib.util
import inspect
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_DRAFTER_CLASSES = {
    "EagleProposer": "vllm.v1.spec_decode.eagle",
    "SpecDecodeBaseProposer": "vllm.v1.spec_decode.eagle",
    "DraftModelProposer": "vllm.v1.spec_decode.draft_model",
}


@dataclass
class _Recording:
    steps: int = 0  # target forward passes that had tokens
    drafts: list[tuple[int, int, int, list[int], str]] = field(default_factory=list)  # see cases.Draft
    costs: list[dict[str, Any]] = field(default_factory=list)  # see _count_costs
    kernels: Counter[str] = field(default_factory=Counter)  # launches in Triton's interpreter, by module.name


# A worker is a process of its own (or the only one), so there is one recording a process.
_recording = _Recording()


def install(worker: Any) -> None:
    """Start recording; called after the engine is up, so warm-up runs are not recorded."""
    runner = worker.model_runner
    _count_steps(runner)
    if os.environ.get("TRITON_INTERPRET") == "1":  # the emulator's, where kernels run in the interpreter
        _count_kernels()
    drafter = getattr(runner, "drafter", None)
    if hasattr(drafter, "_propose"):
        for name in (
            "prepare_next_token_ids_padded",
            "prepare_inputs_padded",
            "prepare_drafting",
            "_propose",
        ):
            if hasattr(drafter, name):
                _count_costs(drafter, name)
        _record_drafts(runner, drafter)


def _count_steps(runner: Any) -> None:
    execute = runner.execute_model

    def counting(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        _recording.steps += scheduler_output.total_num_scheduled_tokens > 0
        return execute(scheduler_output, *args, **kwargs)

    runner.execute_model = counting


def _count_kernels() -> None:
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    @functools.wraps(launch)
    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        _recording.kernels[f"{self.fn.__module__}.{self.fn.__name__}"] += 1
        launch(self, *args, **kwargs)

    GridExecutor.__call__ = counting


def _count_costs(drafter: Any, name: str) -> None:
    """Record, for every call of a method, what it asked of the device and where it waited for it."""
    from torch_npu import counters

    method = getattr(drafter, name)

    @functools.wraps(method)
    def counting(*args: Any, **kwargs: Any) -> Any:
        with counters.record(stacks=True, this_thread=True) as counts:
            result = method(*args, **kwargs)
        _recording.costs.append(
            {
                "method": name,
                "requests": len(drafter.runner.input_batch.req_ids),
                "rows": drafter.runner.query_start_loc.np[len(drafter.runner.input_batch.req_ids)].item(),
                "launches": counts.launches,
                "copies": counts.where(),  # to the host
                "synchronizations": counts.synchronizations,
            }
        )
        return result

    setattr(drafter, name, counting)


def _record_drafts(runner: Any, drafter: Any) -> None:
    propose: Callable[..., Any] = drafter._propose
    signature = inspect.signature(propose)
    passes = _kept_logits(drafter)

    def recording(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        arguments.update(arguments.pop("host_arguments", {}))
        newest = arguments["next_token_ids"].tolist()
        # Read before the call: the host's positions may be a view that is overwritten during it.
        known = [position + 2 for position in _last_positions(arguments)]
        passes.clear()
        drafts = propose(*args, **kwargs)
        requests = [int(str(name).partition("-")[0]) for name in runner.input_batch.req_ids]
        logits = _logits_by_request(passes, drafts.shape)
        _recording.drafts += zip(requests, known, newest, drafts.tolist(), logits, strict=False)
        return drafts

    drafter._propose = recording


def _kept_logits(drafter: Any) -> list[Any]:
    """The list that takes up the logits of every pass that Python runs (a replayed graph runs without it)."""
    kept: list[Any] = []
    model = drafter.get_model()
    compute_logits = model.compute_logits

    def keeping(*args: Any, **kwargs: Any) -> Any:
        kept.append(compute_logits(*args, **kwargs))
        return kept[-1]

    model.compute_logits = keeping
    return kept


def _logits_by_request(passes: list[Any], shape: tuple[int, int]) -> list[str]:
    """float32 [k, vocabulary] of each request in base64; empty where the passes were not seen."""
    import torch

    batch, k = shape
    if not passes:
        return [""] * batch
    # In parallel drafting one pass has the k rows of each request side by side.
    by_pass = [logits.float().cpu() for logits in passes]
    rows = torch.stack([logits[:batch] for logits in by_pass], 1) if len(by_pass) == k else by_pass[0]
    return [
        base64.b64encode(request.numpy().tobytes()).decode()
        for request in rows[: batch * k].reshape(batch, k, -1)
    ]


def _last_positions(arguments: dict[str, Any]) -> list[int]:
    """Position of the last accepted token of each request."""
    index = next(
        (arguments[n] for n in ("last_token_indices", "token_indices_to_sample") if n in arguments), None
    )
    if index is None:
        index = arguments["common_attn_metadata"].query_start_loc[1:] - 1
    positions = arguments["target_positions"]
    return (positions if positions.dim() == 1 else positions[0])[index.long()].tolist()


def collect(worker: Any) -> dict[str, Any]:
    """Facts about the worker, as JSON-able data."""
    runner = worker.model_runner
    drafter = getattr(runner, "drafter", None)
    return {
        "steps": _recording.steps,
        "drafts": _recording.drafts,
        "costs": _recording.costs,
        "kernels": dict(_recording.kernels),
        "runner": _name(type(runner)),
        "drafter": _name(type(drafter)),
        "drafter_bases": [_name(base) for base in type(drafter).__mro__],
        "drafter_is": {name: _is(drafter, module, name) for name, module in _DRAFTER_CLASSES.items()},
        "needs_extra_input_slots": getattr(drafter, "needs_extra_input_slots", None),
        "async_scheduling": bool(runner.vllm_config.scheduler_config.async_scheduling),
        "pid": os.getpid(),
        "report": _patch_report(),
    }


def processes() -> list[dict[str, Any]]:
    """What the runtime files say of this process and those that it started, while they live."""
    if importlib.util.find_spec("ascend_specpatch") is None:
        return []
    from ascend_specpatch.processes import read_all

    return [
        {
            "pid": found.pid,
            "title": found.title(),
            "name": found.name,
            "route": found.report["route"],
            "digest": found.report["digest"],
            "states": {row["id"]: row["state"] for row in found.report["patches"]},
        }
        for found in read_all()[0]
        if _is_ours(found.pid)
    ]


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            return False
    return False


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _is(drafter: Any, module: str, name: str) -> dict[str, bool]:
    cls = getattr(importlib.import_module(module), name)
    return {"instance": isinstance(drafter, cls), "subclass": issubclass(type(drafter), cls)}


def _patch_report() -> list[dict[str, str]] | None:
    """The rows of our report, or None where the package is not installed."""
    if importlib.util.find_spec("ascend_specpatch") is None:
        return None
    from ascend_specpatch import report

    return [{name: str(value) for name, value in vars(row).items()} for row in report.current().rows()]
