# SPDX-License-Identifier: Apache-2.0
"""Offline inference with a draft model: plain and speculative decoding compared.

A stock vLLM script. With ascend-specpatch installed beside vLLM and vllm-ascend it runs as it stands; without
it, vllm-ascend 0.16.0rc1 ends with "Unknown speculative decoding method: draft_model".

    python examples/offline_draft_model.py --model Qwen/Qwen3-8B --draft-model Qwen/Qwen3-0.6B

Greedy decoding of both engines gives the same tokens up to rounding: in 16-bit types two tokens may tie, and
the two engines run them in batches of different shape. ``--dtype float32`` tells rounding from a fault. Exit
status 1: the texts differ.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

PROMPTS = (
    "The capital of France is",
    "Write the first ten prime numbers:",
    "def fibonacci(n):",
    "Speculative decoding makes language models faster because",
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


@dataclass
class Run:
    """What one engine generated, and what its metrics say."""

    prompts: list[str]
    token_ids: list[list[int]]
    texts: list[str]
    drafted: int = 0
    accepted: int = 0
    drafts: int = 0  # steps in which the target verified drafts, summed over the prompts
    accepted_at: list[int] = field(default_factory=list)


def main() -> int:
    arguments = parse_arguments()
    print(f"hosts: vllm {version('vllm')}, vllm-ascend {version('vllm-ascend')}")
    engine = engine_arguments(arguments)
    speculation = {
        "method": "draft_model",
        "model": arguments.draft_model,
        "num_speculative_tokens": arguments.num_speculative_tokens,
    }
    print(f"[1/2] plain decoding with {arguments.model}", flush=True)
    plain = in_own_process(engine, arguments)
    print(
        f"[2/2] {arguments.num_speculative_tokens} tokens a step drafted by {arguments.draft_model}",
        flush=True,
    )
    speculative = in_own_process({**engine, "speculative_config": speculation}, arguments)
    equal = show_texts(plain, speculative)
    show_counts(plain, speculative)
    return 0 if equal else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="target: a directory or a name on the hub")
    parser.add_argument("--draft-model", required=True, help="same vocabulary as the target, but smaller")
    parser.add_argument("--num-speculative-tokens", type=int, default=3, metavar="K")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="to generate for each prompt")
    parser.add_argument("--prompt", action="append", help="may be given several times")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.8, help="share of the NPU's memory")
    parser.add_argument(
        "--enforce-eager", action="store_true", help="no graphs: a faster start, slower steps"
    )
    return parser.parse_args()


def engine_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": arguments.model,
        "dtype": arguments.dtype,
        "max_model_len": arguments.max_model_len,
        "tensor_parallel_size": arguments.tensor_parallel_size,
        "gpu_memory_utilization": arguments.gpu_memory_utilization,
        "enforce_eager": arguments.enforce_eager,
        "skip_tokenizer_init": not has_tokenizer(arguments.model),
        "disable_log_stats": False,  # the counts below are metrics
        "seed": 0,
    }


def has_tokenizer(model: str) -> bool:
    """A directory may hold weights alone; a name on the hub is taken to have a tokenizer."""
    directory = Path(model)
    return not directory.is_dir() or any((directory / name).exists() for name in TOKENIZER_FILES)


def in_own_process(engine: dict[str, Any], arguments: argparse.Namespace) -> Run:
    """One engine after the other, each gone with its process, so that both may use the whole NPU."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(generate, engine, arguments.prompt or PROMPTS, arguments.max_tokens).result()


def generate(engine: dict[str, Any], prompts: list[str], max_tokens: int) -> Run:
    from vllm import LLM, SamplingParams

    llm = LLM(**engine)
    with_text = not engine["skip_tokenizer_init"]
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    inputs: list[Any] = list(prompts) if with_text else random_prompts(len(prompts), vocabulary)
    sampling = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=not with_text, detokenize=with_text
    )
    results = llm.generate(inputs, sampling)
    metrics = {metric.name: metric for metric in llm.get_metrics()}

    def counter(name: str) -> int:
        return metrics[name].value if name in metrics else 0

    by_position = metrics.get("vllm:spec_decode_num_accepted_tokens_per_pos")
    return Run(
        prompts=[
            f"{result.prompt!r}" if with_text else f"{len(result.prompt_token_ids)} tokens"
            for result in results
        ],
        token_ids=[list(result.outputs[0].token_ids) for result in results],
        texts=[result.outputs[0].text for result in results],
        drafted=counter("vllm:spec_decode_num_draft_tokens"),
        accepted=counter("vllm:spec_decode_num_accepted_tokens"),
        drafts=counter("vllm:spec_decode_num_drafts"),
        accepted_at=by_position.values if by_position else [],
    )


def random_prompts(count: int, vocabulary: int) -> list[dict[str, list[int]]]:
    source = random.Random(0)
    lengths = [5 + 60 * index for index in range(count)]
    return [
        {"prompt_token_ids": [source.randrange(3, vocabulary) for _ in range(length)]} for length in lengths
    ]


def show_texts(plain: Run, speculative: Run) -> bool:
    rows = zip(
        plain.prompts, plain.token_ids, speculative.token_ids, plain.texts, speculative.texts, strict=True
    )
    all_equal = True
    for prompt, plain_ids, speculative_ids, plain_text, speculative_text in rows:
        equal = plain_ids == speculative_ids
        all_equal &= equal
        print(f"\nprompt: {prompt}")
        print(f"  plain:       {plain_text or plain_ids!s}")
        print(f"  speculative: {speculative_text or speculative_ids!s}")
        print(f"  equal: {'yes' if equal else 'no'}")
    print(f"\nequal: {'yes' if all_equal else 'no'}")
    return all_equal


def show_counts(plain: Run, speculative: Run) -> None:
    print(f"accepted/drafted: {share(speculative.accepted, speculative.drafted)}")
    for position, accepted in enumerate(speculative.accepted_at, 1):
        print(f"  position {position}: {share(accepted, speculative.drafts)}")
    # Summed over the prompts: plain decoding takes a step a token; each prompt's first token needs no drafts.
    before = sum(map(len, plain.token_ids))
    after = len(speculative.token_ids) + speculative.drafts
    print(f"target steps: {before} plain, {after} speculative, {share(before - after, before)} saved")


def share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({part / whole:.0%})" if whole else f"{part}/{whole}"


if __name__ == "__main__":
    sys.exit(main())
