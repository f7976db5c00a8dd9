# SPDX-License-Identifier: Apache-2.0
"""How many operators drafting launches, and how often it waits for the device.

    python benchmarks/launches.py

Counted on the emulated NPU (tests/npu_emulator) in eager mode, for batches in which every request decodes and
has drafts to verify: from the sampled tokens of the target to the drafts, with input preparation. The hosts
alone are compared with the patched ones. Counts are exact and say nothing of time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
REQUESTS = 2
# What is measured: label, whether patched, method, draft; the target is always "pred".
CASES = (
    ("eagle, hosts alone", False, "eagle", "pred_eagle"),
    ("eagle, patched", True, "eagle", "pred_eagle"),
    ("draft_model, patched", True, "draft_model", "pred_draft"),
)
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "NPU_EMU_TRITON": "1",  # as on an NPU: kernels are launched, not their torch fallbacks
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

_calls: list[dict[str, Any]] = []


def main() -> None:
    sys.path.append(str(CHECKOUT))
    from tests import tiny_models

    with tempfile.TemporaryDirectory(prefix="launches-") as folder:
        tiny_models.write(Path(folder), ["pred", "pred_draft", "pred_eagle"])
        print("| | launches, k=1 | of the model | each further step | of the model | copies to the host |")
        print("|---|---|---|---|---|---|")
        for label, patched, method, draft in CASES:
            one, three = (measure(folder, patched, method, draft, k) for k in (1, 3))
            further = [(three[what] - one[what]) / 2 for what in ("launches", "model")]
            cells = (one["launches"], one["model"], *further, three["copies"])
            print(f"| {label} | {' | '.join(f'{cell:g}' for cell in cells)} |", flush=True)


def measure(folder: str, patched: bool, method: str, draft: str, k: int) -> dict[str, float]:
    """Medians over the decoding steps of one engine, which gets a process of its own."""
    print(f"measuring {method}, k={k}, {'patched' if patched else 'hosts alone'}", file=sys.stderr)
    environ = {**os.environ, **ENVIRONMENT, "ASCEND_SPECPATCH": str(int(patched))}
    command = [sys.executable, __file__, "--child", folder, method, draft, str(k)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(folder: str, method: str, draft: str, k: int) -> None:
    from vllm import LLM, SamplingParams

    speculation = {"method": method, "model": f"{folder}/{draft}", "num_speculative_tokens": k}
    llm = LLM(
        f"{folder}/pred",
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=REQUESTS,
        max_num_batched_tokens=64,  # the interpreter takes minutes for a large warm-up batch
        num_gpu_blocks_override=64,
        speculative_config=speculation,
    )
    llm.collective_rpc(count_drafting, args=(REQUESTS * (k + 1),))
    prompts = [{"prompt_token_ids": list(range(5, 25 + 10 * number))} for number in range(REQUESTS)]
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    llm.generate(prompts, sampling, use_tqdm=False)
    print(json.dumps({what: statistics.median(call[what] for call in _calls) for what in _calls[0]}))


def count_drafting(worker: Any, decoding_tokens: int) -> None:
    """Record every call of the runner's drafting whose batch holds ``decoding_tokens`` tokens."""
    from torch_npu import counters

    runner = worker.model_runner
    propose, forward = runner.propose_draft_token_ids, runner.drafter.model.forward
    in_model = 0

    def counting_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal in_model
        with counters.record(this_thread=True) as counts:
            result = forward(*args, **kwargs)
        in_model += counts.launches
        return result

    def counting_propose(
        sampled: Any, sampling: Any, scheduler_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        nonlocal in_model
        in_model = 0
        with counters.record(this_thread=True) as counts:
            result = propose(sampled, sampling, scheduler_output, *args, **kwargs)
        if scheduler_output.total_num_scheduled_tokens == decoding_tokens:
            copies = counts.device_to_host.count
            _calls.append({"launches": counts.launches, "model": in_model, "copies": copies})
        return result

    runner.propose_draft_token_ids = counting_propose
    runner.drafter.model.forward = counting_forward


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5], int(sys.argv[5]))
    else:
        main()
