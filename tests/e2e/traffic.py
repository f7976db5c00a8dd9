# SPDX-License-Identifier: Apache-2.0
"""Requests that come and go while one engine steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .cases import SAMPLING, Case


@dataclass(frozen=True)
class Arrival:
    """One request: what it asks for, when it joins, and when its client goes away."""

    prompt: list[int]
    sampling: Mapping[str, Any] = field(default_factory=dict)  # over the case's
    step: int = 0  # engine steps before it joins
    abort_after: int | None = None  # engine steps after joining

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def play(llm: Any, case: Case) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Send the case's arrivals through the engine, which must be of this process.

    Returns:
        For every arrival, in their order, what its client saw last: ``outputs``, n of them with ``tokens``,
        ``text``, ``finish``, ``stop`` and ``logprobs``; ``prompt_logprobs``; whether it was ``finished`` or
        ``aborted``. And what the engine holds at the end: see :func:`_held`.
    """
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    free = _held(llm)["free_blocks"]
    answers: list[dict[str, Any]] = [
        {"outputs": [{} for _ in range(arrival["sampling"].get("n", 1))], "finished": False, "aborted": False}
        for arrival in case.arrivals
    ]
    arrivals = [Arrival(**arrival) for arrival in case.arrivals]
    coming = deque(sorted(range(len(arrivals)), key=lambda number: arrivals[number].step))
    leaving: dict[int, list[int]] = {}
    step = 0
    while coming or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            step = max(step, arrivals[coming[0]].step)  # nobody is there: skip the silence
        while coming and arrivals[coming[0]].step <= step:
            number = coming.popleft()
            arrival = arrivals[number]
            engine.add_request(
                str(number), {"prompt_token_ids": arrival.prompt}, _sampling_params(case, arrival)
            )
            if arrival.abort_after is not None:
                leaving.setdefault(step + arrival.abort_after, []).append(number)
        for number in leaving.pop(step, ()):
            if not answers[number]["finished"]:
                answers[number]["aborted"] = True
                engine.abort_request([str(number)])
        for output in engine.step():
            _update(answers[int(output.request_id)], output)
        step += 1
    while core.batch_queue or core.scheduler.has_requests():  # steps in flight; who must forget the last ones
        core.step_fn()
    held = _held(llm)
    held["missing_blocks"] = free - held.pop("free_blocks")
    return answers, {**held, "steps": step}


def _sampling_params(case: Case, arrival: Arrival) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    asked = {**SAMPLING, "max_tokens": case.max_tokens, **case.sampling, **arrival.sampling}
    if "structured_outputs" in asked:
        asked["structured_outputs"] = StructuredOutputsParams(**asked["structured_outputs"])
    return SamplingParams(**asked)


def _update(answer: dict[str, Any], output: Any) -> None:
    for part in output.outputs:  # where n > 1, those that have news
        answer["outputs"][part.index] = {
            "tokens": list(part.token_ids),
            "text": part.text,
            "finish": part.finish_reason,
            "stop": part.stop_reason,
            "logprobs": _logprobs(part.logprobs),
        }
    answer["prompt_logprobs"] = _logprobs(output.prompt_logprobs)
    answer["finished"] = output.finished


def _logprobs(found: Any) -> list[dict[str, float] | None] | None:
    if found is None:
        return None
    return [row and {str(token): entry.logprob for token, entry in row.items()} for row in found]


def _held(llm: Any) -> dict[str, Any]:
    """What of the engine a request takes up."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    manager = scheduler.kv_cache_manager
    return {
        "free_blocks": manager.block_pool.get_num_free_blocks(),
        "requests": len(scheduler.requests) + len(scheduler.running) + len(scheduler.waiting),
        "block_tables": sum(len(one.req_to_blocks) for one in manager.coordinator.single_type_managers),
        "in_runner": sum(llm.collective_rpc(_requests_in_runner)),
    }


def _requests_in_runner(worker: Any) -> int:
    runner = worker.model_runner
    return len(runner.requests) + runner.input_batch.num_reqs
