# SPDX-License-Identifier: Apache-2.0
"""The kernels on an NVIDIA GPU: the same results as their references and upstream's kernels, and how fast.

    python benchmarks/kernels.py collect build/kernels      where vLLM is installed
    python build/kernels/kernels.py measure build/kernels   where a GPU is: results.json and kernels.png there
    python benchmarks/kernels.py report build/kernels       puts both into docs/kernels.md

The machine with the GPU needs the folder, torch, Triton and matplotlib: `collect` takes upstream's kernels
out of the installed vLLM, and this package along. Times are those of replayed CUDA graphs, so without the
launchers' Python.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import platform
import shutil
import statistics
import sys
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
UPSTREAM = "upstream_kernels.py"
PACKAGE = "package"
RESULTS = "results.json"
PICTURE = "kernels.png"
PAGE = CHECKOUT / "docs/kernels.md"

VOCABULARY = 151_936
DRAFTS = 3
BATCHES = (1, 16, 256, 4096)
SWEEP = range(1, 257)


# ---- collect -----------------------------------------------------------------------------------------------


def collect(folder: Path) -> None:
    """Put what `measure` needs into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    vllm = Path(find_spec("vllm").origin).parent  # type: ignore[union-attr,arg-type]
    kernels = [
        kernel
        for source in ("v1/spec_decode/utils.py", "v1/sample/rejection_sampler.py")
        for kernel in jit_functions((vllm / source).read_text())
    ]
    head = "# Taken out of the installed vLLM by benchmarks/kernels.py; not part of this project.\n"
    head += "import triton\nimport triton.language as tl\n"
    (folder / UPSTREAM).write_text("\n\n\n".join([head, *kernels]) + "\n")
    package = folder / PACKAGE / "ascend_specpatch"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(CHECKOUT / "kernels", package / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for module in (CHECKOUT / "ascend_specpatch").glob("*.py"):
        shutil.copy(module, package)
    shutil.copy(__file__, folder)


def jit_functions(source: str) -> list[str]:
    lines = source.splitlines()
    return [
        "\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno])
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
    ]


# ---- measure -----------------------------------------------------------------------------------------------


def stand_in_for_vllm() -> None:
    """The one module of vLLM that the kernels import."""
    import triton
    import triton.language as tl

    module = types.ModuleType("vllm.triton_utils")
    module.__dict__.update(triton=triton, tl=tl, HAS_TRITON=True)
    sys.modules["vllm"] = types.ModuleType("vllm")
    sys.modules["vllm.triton_utils"] = module


class Batch:
    """Random inputs for `size` requests, each with `drafts` draft tokens, or up to as many."""

    def __init__(
        self, size: int, *, vocabulary: int = VOCABULARY, drafts: int = DRAFTS, ragged: bool = False
    ) -> None:
        import torch

        def integers(low: int, high: int, *shape: int) -> Any:
            return torch.randint(low, high, shape, dtype=torch.int32, device="cuda")

        def probabilities(rows: int) -> Any:
            probs = torch.rand((rows, vocabulary), device="cuda")
            return probs.div_(probs.sum(1, keepdim=True))

        self.size, self.drafts, self.vocabulary = size, drafts, vocabulary
        self.drafted = (
            integers(0, drafts + 1, size) if ragged else torch.full_like(integers(0, 1, size), drafts)
        )
        self.cu = self.drafted.cumsum(0).int()
        self.num_tokens = int(self.cu[-1])
        self.starts = torch.nn.functional.pad((self.drafted + 1).cumsum(0), (1, 0)).int()
        self.sampled = torch.where(
            torch.rand((size, drafts + 1), device="cuda") < 0.7, integers(0, vocabulary, size, drafts + 1), -1
        )
        self.discard = torch.rand(size, device="cuda") < 0.1
        self.backup = integers(0, vocabulary, size)
        self.valid = integers(0, drafts + 2, size).minimum(self.drafted + 1).clamp(min=1)
        self.draft_ids = integers(0, vocabulary, self.num_tokens)
        same = torch.rand(self.num_tokens, device="cuda") < 0.7
        self.argmax = torch.where(same, self.draft_ids, integers(0, vocabulary, self.num_tokens)).long()
        self.bonus = integers(0, vocabulary, size, 1)
        self.greedy = torch.rand(size, device="cuda") < 0.5
        self.random = torch.zeros_like(self.greedy)
        self.temperature = torch.rand(size, device="cuda")
        self.top_k, self.top_p = integers(1, 50, size), torch.rand(size, device="cuda")
        self.recovered = integers(0, vocabulary, self.num_tokens)
        self.uniform = torch.rand(self.num_tokens, dtype=torch.float64, device="cuda")
        self.draft_probs = probabilities(self.num_tokens)
        self.target_probs = probabilities(self.num_tokens)
        self.q = torch.empty((size, vocabulary), device="cuda").exponential_()
        # The first draft pass: the rows of the target, of which some are rejected.
        self.num_rows = int(self.starts[-1])
        self.ends = self.starts[1:] - 1 - (self.drafted + 1 - self.valid)
        self.row_ids, self.positions = (
            integers(0, vocabulary, self.num_rows),
            torch.arange(self.num_rows, device="cuda"),
        )

    def rows(self) -> Any:
        import torch

        return torch.full((self.size, self.drafts + 1), -1, dtype=torch.int32, device="cuda")

    def drafting_buffers(self, slots: int, shift: bool) -> list[Any]:
        import torch

        rows = self.num_rows + (slots - shift) * self.size
        shapes = ((rows, torch.int32), (rows, torch.int64), (rows, torch.bool), (rows, torch.bool))
        shapes += ((self.size * slots, torch.int32), (self.num_rows, torch.int32))
        return [torch.zeros(length, dtype=dtype, device="cuda") for length, dtype in shapes]


class Case:
    """One kernel: what it writes, and how upstream's kernel, ours and the reference are called."""

    def __init__(self, name: str, outputs: Callable[[Batch], list[Any]], **calls: Callable[..., Any]) -> None:
        self.name, self.outputs, self.calls = name, outputs, calls


def cases(upstream: Any) -> list[Case]:
    import torch
    import triton

    from ascend_specpatch.kernels import (
        copy_and_expand_inputs,
        expand,
        prepare_inputs_padded,
        prepare_next_token_padded,
        recovered_tokens,
        rejection_greedy,
        rejection_random,
    )

    def integers(number: int) -> Callable[[Batch], list[Any]]:
        return lambda b: [torch.zeros(b.size, dtype=torch.int32, device="cuda") for _ in range(number)]

    def next_token(b: Batch) -> tuple[Any, ...]:
        return b.sampled, b.discard, b.backup

    def upstream_next_token(b: Batch, next_ids: Any, count: Any) -> None:
        upstream.eagle_prepare_next_token_padded_kernel[(b.size,)](
            *next_token(b), next_ids, count, b.vocabulary, b.drafts + 1, b.size, b.drafts + 1,
            BLOCK_SIZE_TOKENS=triton.next_power_of_2(b.drafts + 1),
        )  # fmt: skip

    def our_next_token(b: Batch, *outputs: Any) -> None:
        prepare_next_token_padded._launch(*next_token(b), *outputs, b.vocabulary)

    def upstream_inputs(b: Batch, valid: Any, *outputs: Any) -> None:
        upstream.eagle_prepare_inputs_padded_kernel[(b.size,)](b.cu, valid, b.starts, *outputs, b.size)

    def upstream_expand(b: Batch, output: Any, values: Any, *replace: int) -> None:
        upstream.expand_kernel[(b.size,)](output, values, b.cu, *(replace or (0, 0)), MAX_NUM_TOKENS=128)

    def expand_in_three(b: Batch, *outputs: Any) -> None:
        for output, values in zip(outputs, (b.temperature, b.top_k, b.top_p), strict=True):
            upstream_expand(b, output, values)

    def sampling_outputs(b: Batch) -> list[Any]:
        return [values.new_zeros(b.num_tokens) for values in (b.temperature, b.top_k, b.top_p)]

    def drafting(slots: int, shift: bool) -> Case:
        def upstream_copy(b: Batch, *outputs: Any) -> None:
            block = triton.next_power_of_2(b.drafts + 1 + slots - shift)
            upstream.copy_and_expand_eagle_inputs_kernel[(b.size, 1)](
                b.row_ids, b.positions, b.backup, *outputs, b.starts, b.ends, 0, 7, b.num_rows, slots, shift,
                BLOCK_SIZE_TOKENS=block,
            )  # fmt: skip

        def our_copy(
            b: Batch, *outputs: Any, launch: Any = copy_and_expand_inputs.copy_and_expand_inputs
        ) -> None:
            launch(b.row_ids, b.positions, b.backup, *outputs, b.starts, b.ends, 0, 7, slots, shift)

        return Case(
            "copy_and_expand_inputs" + (", shifted" if shift else ""),
            lambda b: b.drafting_buffers(slots, shift),
            upstream=upstream_copy,
            ours=our_copy,
            reference=lambda b, *o: our_copy(b, *o, launch=copy_and_expand_inputs.reference),
        )

    def rejection(ngram: bool) -> Case:
        def inputs(b: Batch) -> tuple[Any, ...]:
            probs = None if ngram else b.draft_probs
            return b.cu, b.draft_ids, probs, b.target_probs, b.bonus, b.recovered, b.uniform, b.random

        return Case(
            "rejection_random" + (", no draft probabilities" if ngram else ""),
            lambda b: [b.rows()],
            upstream=lambda b, o: upstream.rejection_random_sample_kernel[(b.size,)](
                o, *inputs(b), b.drafts, b.vocabulary, NO_DRAFT_PROBS=ngram
            ),
            ours=lambda b, o: rejection_random.rejection_random(o, *inputs(b)),
            reference=lambda b, o: rejection_random.reference(o, *inputs(b)),
        )

    def recovered(ngram: bool) -> Case:
        def inputs(b: Batch) -> tuple[Any, ...]:
            return b.cu, b.draft_ids, None if ngram else b.draft_probs, b.target_probs, b.q

        return Case(
            "recovered_tokens" + (", no draft probabilities" if ngram else ""),
            lambda b: [torch.zeros_like(b.draft_ids)],
            upstream=lambda b, o: upstream.sample_recovered_tokens_kernel[(b.size, b.drafts)](
                o, *inputs(b), b.vocabulary, triton.next_power_of_2(b.vocabulary), NO_DRAFT_PROBS=ngram
            ),
            ours=lambda b, o: recovered_tokens.recovered_tokens(o, *inputs(b), b.drafts),
            reference=lambda b, o: o.copy_(recovered_tokens.reference(*inputs(b))),
        )

    def greedy(name: str, mixed: bool) -> Case:
        def inputs(b: Batch) -> tuple[Any, ...]:
            return b.cu, b.draft_ids, b.argmax, b.bonus, b.greedy if mixed else None

        return Case(
            name,
            lambda b: [b.rows()],
            upstream=lambda b, o: upstream.rejection_greedy_sample_kernel[(b.size,)](o, *inputs(b), b.drafts),
            ours=lambda b, o: rejection_greedy.rejection_greedy(o, *inputs(b)),
            reference=lambda b, o: rejection_greedy.reference(o, *inputs(b)),
        )

    def copies(results: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
        for output, result in zip(outputs, results, strict=True):
            output.copy_(result)

    def fused_reference(b: Batch, *outputs: Any) -> None:
        tokens = prepare_next_token_padded.reference(*next_token(b), b.vocabulary)
        rows = prepare_inputs_padded.reference(b.cu, tokens[1].clamp(min=1), b.starts)
        copies((*tokens, *rows), outputs)

    def upstream_both(b: Batch, next_ids: Any, count: Any, *outputs: Any) -> None:
        upstream_next_token(b, next_ids, count)
        upstream_inputs(b, count, *outputs)

    return [
        Case(
            "prepare_inputs_padded",
            integers(2),
            upstream=lambda b, *o: upstream_inputs(b, b.valid, *o),
            ours=lambda b, *o: prepare_inputs_padded._launch(b.cu, b.valid, b.starts, *o),
            reference=lambda b, *o: copies(prepare_inputs_padded.reference(b.cu, b.valid, b.starts), o),
        ),
        Case(
            "prepare_next_token_padded",
            integers(2),
            upstream=upstream_next_token,
            ours=our_next_token,
            reference=lambda b, *o: copies(
                prepare_next_token_padded.reference(*next_token(b), b.vocabulary), o
            ),
        ),
        Case(
            "prepare_drafting (both in one)",
            integers(4),
            # Upstream moves the row of a request without a valid token into the request before: timed, not
            # compared.
            timed=upstream_both,
            ours=lambda b, *o: prepare_next_token_padded._launch(
                *next_token(b), *o[:2], b.vocabulary, b.cu, b.starts, *o[2:]
            ),
            reference=fused_reference,
        ),
        drafting(1, False),
        drafting(DRAFTS, True),
        greedy("rejection_greedy", False),
        greedy("rejection_greedy, mixed batch", True),
        rejection(False),
        rejection(True),
        Case(
            "expand",
            lambda b: [b.temperature.new_zeros(b.num_tokens)],
            upstream=lambda b, o: upstream_expand(b, o, b.temperature, 0, 1),
            ours=lambda b, o: expand.expand(o, b.temperature, b.cu, 0, 1),
            reference=lambda b, o: expand.reference(o, b.temperature, b.cu, 0, 1),
        ),
        Case(
            "expand_sampling (three in one)",
            sampling_outputs,
            upstream=expand_in_three,
            ours=lambda b, *o: expand._launch(
                list(zip(o, (b.temperature, b.top_k, b.top_p), strict=True)), b.cu, 0, 0
            ),
            reference=lambda b, *o: [
                expand.reference(output, values, b.cu)
                for output, values in zip(o, (b.temperature, b.top_k, b.top_p), strict=True)
            ],
        ),
        recovered(False),
        recovered(True),
    ]


def same_tokens(b: Batch, ngram: bool, ours: Any, other: Any) -> bool:
    """Whether two choices of recovered tokens are equal or as good: a GPU divides a little differently
    than torch."""
    import torch

    differ = (ours != other).nonzero().squeeze(1)
    request = torch.searchsorted(b.cu.long(), differ, right=True)
    prob = b.target_probs[differ].double()
    if ngram:
        prob.scatter_(1, b.draft_ids[differ].long().unsqueeze(1), 0.0)
    else:
        prob -= b.draft_probs[differ].double()
    score = prob / b.q[request]
    mine, best = (score.gather(1, tokens[differ].long().unsqueeze(1)) for tokens in (ours, other))
    return len(differ) <= 2 + b.num_tokens // 1000 and bool((mine >= best * (1 - 1e-6)).all())


def compare(every: list[Case], b: Batch, others: tuple[str, ...] = ("reference", "upstream")) -> int:
    """Compare on the device, and return the number of comparisons.

    Raises:
        AssertionError: two results differ.
    """
    import torch

    number = 0
    for case in every:
        results = {}
        for who in ("ours", *others):
            if who in case.calls:
                results[who] = case.outputs(b)
                case.calls[who](b, *results[who])
                torch.cuda.synchronize()
        for other in others:
            for mine, theirs in zip(results["ours"], results.get(other, ()), strict=False):
                where = f"{case.name} and {other}: {b.size} x {b.drafts}, vocabulary {b.vocabulary}"
                if case.name.startswith("recovered_tokens"):
                    assert same_tokens(b, "no draft" in case.name, mine, theirs), where
                else:
                    assert torch.equal(mine, theirs), where
                number += 1
    return number


def check(every: list[Case]) -> int:
    """Compare over shapes; see :func:`compare`."""
    number = 0
    shapes = [
        *((size, 4099, drafts) for size in (1, 2, 7, 8, 9, 33, 257) for drafts in (1, 3, 7)),
        (5000, 1021, 3),
        (30_000, 1021, 3),  # more than 65,535 draft tokens
        (3, 262_144, 3),
        (2, VOCABULARY, 3),
        (17, 128_257, 5),
    ]
    for size, vocabulary, drafts in shapes:
        for ragged in (False, True):
            b = Batch(size, vocabulary=vocabulary, drafts=drafts, ragged=ragged)
            if b.num_tokens > 0:
                number += compare(every, b)
    # More than 2^31 probabilities, which upstream's kernels address in 32 bits.
    far = Batch(4096, vocabulary=262_144)
    return number + compare(
        [case for case in every if case.name.startswith(("recovered", "rejection"))], far, ("reference",)
    )


def microseconds(calls: dict[str, Callable[[], Any]], launches: int) -> dict[str, float]:
    """Time of one of each of `calls`, each in a CUDA graph of `launches`: the median of 25 replays, taken
    in turn."""
    import torch

    graphs = {}
    for who, call in calls.items():
        call()
        torch.cuda.synchronize()
        graphs[who] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[who]):
            for _ in range(launches):
                call()
    times: dict[str, list[float]] = {who: [] for who in calls}
    for _ in range(26):
        for who, graph in graphs.items():
            times[who].append(milliseconds(graph.replay) * 1e3 / launches)
    return {who: statistics.median(found[1:]) for who, found in times.items()}


def milliseconds(call: Callable[[], Any]) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def copy_bandwidth() -> float:
    """Bytes read and written in a second by a copy of 4 GiB, the better of PyTorch's copy and of a
    kernel's."""
    import torch

    source = torch.rand(1 << 30, device="cuda")
    target = torch.empty_like(source)
    calls = (lambda: target.copy_(source), lambda: torch.mul(source, 1.0, out=target))
    fastest = min(milliseconds(call) for call in calls * 10)
    return 2 * 4 * source.numel() / (fastest / 1e3)


def compiled_variants() -> dict[str, int]:
    """Variants of each Triton kernel of ours that batches of 1 to 256 requests have compiled."""
    from importlib import import_module

    from triton.runtime.jit import JITFunction

    from ascend_specpatch import kernels

    found = {}
    for file in sorted(set(kernels.TABLE.values())):
        for name, kernel in vars(import_module(f"ascend_specpatch.kernels.{file}")).items():
            if isinstance(kernel, JITFunction) and kernel.fn.__module__.endswith(file):
                variants = sum(len(caches[0]) for caches in kernel.device_caches.values())
                if variants:  # else it is inlined into others
                    found[f"{file}.{name}"] = variants
    return found


def clear_variants() -> None:
    from importlib import import_module

    from triton.runtime.jit import JITFunction

    from ascend_specpatch import kernels

    for file in set(kernels.TABLE.values()):
        for kernel in vars(import_module(f"ascend_specpatch.kernels.{file}")).values():
            if isinstance(kernel, JITFunction):
                kernel.device_caches.clear()


def measure(folder: Path) -> None:
    sys.path[:0] = [str(folder), str(folder / PACKAGE)]
    stand_in_for_vllm()
    import torch
    import triton
    import upstream_kernels

    torch.manual_seed(0)
    every = cases(upstream_kernels)
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "comparisons": check(every),
        "copy_bandwidth": copy_bandwidth(),
        "times": {},
        "bytes": {},
    }
    print(f"{results['comparisons']} comparisons on {results['device']}: equal", flush=True)
    print(f"copy: {results['copy_bandwidth'] / 1e12:.2f} TB/s", flush=True)
    for size in BATCHES:
        b = Batch(size)
        large = 1 if size > 256 else 5 if size > 16 else 50
        for case in every:
            launches = large if case.name.startswith("recovered_tokens") else 100
            outputs = case.outputs(b)
            calls = {
                "upstream" if who == "timed" else who: functools.partial(call, b, *outputs)
                for who, call in case.calls.items()
                if who != "reference"
            }
            row = results["times"].setdefault(case.name, {})[str(size)] = microseconds(calls, launches)
            print(
                f"{case.name:48s} {size:5d}  " + "  ".join(f"{k} {v:9.2f}" for k, v in row.items()),
                flush=True,
            )
        results["bytes"][str(size)] = 4 * VOCABULARY * (2 * b.num_tokens + b.size)
        del b, outputs, calls
        torch.cuda.empty_cache()

    # Ordinary calls, as drafting and sampling make them; what was compiled for other vocabularies does not
    # count.
    clear_variants()
    for size in SWEEP:
        b = Batch(size, vocabulary=32_000)
        for case in every:
            if not any(
                word in case.name for word in ("mixed", "no draft", "shifted", "three in one", "both in one")
            ):
                case.calls["ours"](b, *case.outputs(b))
    torch.cuda.synchronize()
    results["variants"] = compiled_variants()
    print(results["variants"])
    (folder / RESULTS).write_text(json.dumps(results, indent=1))
    draw(results, folder / PICTURE)


# ---- report ------------------------------------------------------------------------------------------------


def draw(results: dict[str, Any], path: Path) -> None:
    """Time over batch size, a panel for each kernel that upstream has too."""
    from matplotlib import pyplot

    shown = {name: rows for name, rows in results["times"].items() if "upstream" in rows[str(BATCHES[0])]}
    columns = 4
    figure, panels = pyplot.subplots(-(-len(shown) // columns), columns, figsize=(15, 10), squeeze=False)
    for panel, (name, rows) in zip(panels.flat, shown.items(), strict=False):
        for who, colour, marker in (("upstream", "#8a8a8a", "o"), ("ours", "#c7000b", "s")):
            panel.plot(
                BATCHES, [rows[str(size)][who] for size in BATCHES], color=colour, marker=marker, label=who
            )
        panel.set_title(name.replace(", ", ",\n"), fontsize=10)
        panel.set_xscale("log", base=4)
        panel.set_yscale("log")
        panel.set_xticks(BATCHES, [str(size) for size in BATCHES])
        panel.grid(True, which="both", alpha=0.25)
    for panel in panels.flat[len(shown) :]:
        panel.axis("off")
    panels[0][0].legend(fontsize=9)
    figure.supxlabel("requests", fontsize=10)
    figure.supylabel("microseconds", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def tables(results: dict[str, Any]) -> str:
    """What was measured, in Markdown."""
    text = [
        "{device}, Triton {triton}, torch {torch}, Python {python}; ".format(**results)
        + f"K={DRAFTS}, vocabulary {VOCABULARY:,}; microseconds, upstream's kernel -> ours (ratio):",
        "",
        "| kernel | " + " | ".join(f"{size:,} requests" for size in BATCHES) + " |",
        "|---|" + "---|" * len(BATCHES),
    ]
    for name, rows in results["times"].items():
        cells = []
        for size in BATCHES:
            ours, upstream = rows[str(size)]["ours"], rows[str(size)].get("upstream")
            cells.append(
                f"{upstream:.2f} -> {ours:.2f} ({ours / upstream:.2f})" if upstream else f"{ours:.2f}"
            )
        text.append(f"| {name} | " + " | ".join(cells) + " |")
    bandwidth = results["copy_bandwidth"]
    recovered = results["times"]["recovered_tokens"]
    shares = (
        results["bytes"][str(size)] / (recovered[str(size)]["ours"] / 1e6) / bandwidth for size in BATCHES
    )
    text += [
        "",
        f"A copy of 4 GiB moves {bandwidth / 1e12:.2f} TB/s, bytes read and written. recovered_tokens reads "
        "its inputs once at "
        + ", ".join(f"{share:.0%} ({size:,})" for share, size in zip(shares, BATCHES, strict=True))
        + " of that; what is read again, or fits into the cache, can make that more than all of it.",
        "",
        f"{results['comparisons']:,} comparisons on the device with the references and upstream's kernels "
        "found no difference. Compiled variants over batches of 1 to 256 requests: "
        + ", ".join(f"{name} {number}" for name, number in results["variants"].items())
        + ".",
    ]
    return "\n".join(text)


def report(folder: Path) -> None:
    """Put the results in `folder` between the markers of docs/kernels.md, and the picture beside it."""
    begin, end = "<!-- benchmarks/kernels.py: begin -->\n", "<!-- end -->"
    head, rest = PAGE.read_text().split(begin)
    written = tables(json.loads((folder / RESULTS).read_text()))
    PAGE.write_text(f"{head}{begin}{written}\n{end}{rest.split(end, 1)[1]}")
    shutil.copy(folder / PICTURE, PAGE.with_name(PICTURE))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("collect", "measure", "report"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    {"collect": collect, "measure": measure, "report": report}[arguments.step](arguments.folder)


if __name__ == "__main__":
    main()
