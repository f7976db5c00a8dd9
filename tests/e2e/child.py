# SPDX-License-Identifier: Apache-2.0
"""Runs one case where the hosts may be imported, and writes its outcome.

:func:`serve` is called by a program of its own (a fresh interpreter, as a user's script is) or in a fork of
the fork server.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from . import probe, prompts, ray_cluster, traffic
from .cases import Case, Outcome

# Not in ENGINE: the spawned processes and the forks read it as well.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",  # ngram's numba shares OpenMP with torch, and would set it to all cores
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_CONFIGURE_LOGGING": "1",
    "VLLM_LOGGING_COLOR": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    # probe.install and probe.collect are functions sent to the workers.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
}


def environment(case: Case) -> dict[str, str]:
    """What a case adds to the environment."""
    several = case.processes in ("fork", "spawn")
    return {
        **ENVIRONMENT,
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(several)),
        **({"VLLM_WORKER_MULTIPROC_METHOD": case.processes} if several else {}),
        **(ray_cluster.ENVIRONMENT if case.processes == "ray" else {}),
        **case.env,
    }


@dataclass(frozen=True)
class Request:
    case: Case
    models: Path
    log: Path
    outcome: Path

    def to_json(self) -> str:
        return json.dumps([self.case.to_json(), str(self.models), str(self.log), str(self.outcome)])

    @classmethod
    def from_json(cls, text: str) -> Request:
        case, *paths = json.loads(text)
        return cls(Case.from_json(case), *map(Path, paths))


def serve(request: Request) -> None:
    """Run the case with its output in the log, and write the outcome, whatever happens."""
    _redirect(request.log)
    os.environ.update(environment(request.case))  # a bare fork server lacks the case's patch settings
    # Shortly before the parent's limit: a hung case says where.
    faulthandler.dump_traceback_later(max(1.0, request.case.timeout - 3), file=sys.stderr)
    started = time.monotonic()
    try:
        outcome = run(request.case, request.models)
    except BaseException as error:  # SystemExit included: the outcome is the boundary
        traceback.print_exc()
        outcome = Outcome(error=describe(error))
    outcome.seconds = round(time.monotonic() - started, 2)
    outcome.log = str(request.log)
    request.outcome.write_text(outcome.to_json())
    sys.stdout.flush()
    sys.stderr.flush()


def run(case: Case, models: Path) -> Outcome:
    if case.processes == "ray":
        with ray_cluster.running(devices=case.engine.get("tensor_parallel_size", 1)):
            return _run(case, models)
    return _run(case, models)


def _run(case: Case, models: Path) -> Outcome:
    from vllm import LLM, SamplingParams

    _allow_float32_caches()
    llm = LLM(**case.engine_arguments(models))
    llm.collective_rpc(probe.install)
    if case.arrivals:
        answers, left = traffic.play(llm, case)
        return Outcome(
            answers=answers, left=left, metrics=_metrics(llm), workers=llm.collective_rpc(probe.collect)
        )
    inputs = [{"prompt_token_ids": ids} for ids in prompts.tokens(case.prompts)]
    results = llm.generate(
        inputs,
        SamplingParams(**case.sampling_arguments()),
        use_tqdm=False,
        lora_request=_adapters(case, models, len(inputs)),
    )
    outcome = Outcome(
        tokens=[list(result.outputs[0].token_ids) for result in results],
        metrics=_metrics(llm),
        workers=llm.collective_rpc(probe.collect),
        processes=probe.processes(),
    )
    del llm
    gc.collect()  # ends the engine's own processes
    return outcome


def _allow_float32_caches() -> None:
    """vllm-ascend names the type of sparse attention's KV cache, and vLLM knows no such name for float32."""
    from vllm.v1.attention import selector

    names = (*get_args(selector.CacheDType), "float32")
    selector.CacheDType = Literal[names]  # type: ignore[misc,valid-type]


def _adapters(case: Case, models: Path, requests: int) -> list[Any] | None:
    if not case.adapters:
        return None
    from vllm.lora.request import LoRARequest

    numbers = {name: number for number, name in enumerate(filter(None, dict.fromkeys(case.adapters)), 1)}
    asked = {name: LoRARequest(name, number, str(models / name)) for name, number in numbers.items()}
    return [asked.get(case.adapter(request)) for request in range(requests)]


def _metrics(llm: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for metric in llm.get_metrics():
        value = next((getattr(metric, n) for n in ("value", "values", "count") if hasattr(metric, n)), None)
        values[metric.name.removeprefix("vllm:")] = value
    return values


def describe(error: BaseException) -> str:
    """ "Type: message" of an error and of what caused it, one a line, outermost first."""
    lines, seen = [], set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        lines.append(f"{type(current).__name__}: {current}")
        current = current.__cause__ or current.__context__
    return "\n".join(lines)


def _redirect(log: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
