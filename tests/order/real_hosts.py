# SPDX-License-Identifier: Apache-2.0
"""Import orders on the real hosts, on the emulated NPU: a tree of forked processes.

An order is a list of steps. A step is the name of a module to import, ``NAME=value`` to set in the
environment, ``arm`` (what the ``.pth`` line does), ``register`` (vLLM's plugin entry point) or ``activate``
(``ascend_specpatch.hooks.activate``). :func:`explore` gives the :class:`Outcome` of each order.

One process imports all that the hosts need, but no host. From there each step is taken once for all orders
that begin alike, and where they part every continuation gets a fork: a thousand orders take minutes, no days.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0:1] = []  # not this folder, whose modules would hide others
    sys.path.append(str(CHECKOUT))

from tests.order.real_hosts_state import HOLDERS, HOSTS, record_changes, state  # noqa: E402

# What else a process may import before, between and after the HOLDERS.
OTHERS = (
    "vllm",
    "vllm.config",
    "vllm.platforms",
    "vllm.entrypoints.llm",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.spec_decode.metadata",
    "vllm.v1.spec_decode.ngram_proposer",
    "vllm.v1.worker.gpu_input_batch",
    "vllm.v1.worker.gpu_worker",
    "vllm_ascend",
    "vllm_ascend.platform",
    "vllm_ascend.utils",
    "vllm_ascend.attention.attention_v1",
    "vllm_ascend.core.recompute_scheduler",
    "vllm_ascend.ops.triton.spec_decode.utils",
    "vllm_ascend.patch.platform",
    "vllm_ascend.patch.worker",
    "vllm_ascend.sample.rejection_sampler",
    "vllm_ascend.spec_decode.ngram_proposer",
    "vllm_ascend.worker.npu_input_batch",
    "vllm_ascend.worker.v2.model_runner",
)
MODULES = (*HOLDERS, *OTHERS)

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
HANGS_AFTER = 300  # seconds; a step takes 2

# Settings of random orders: what a process ends in must not depend on the order with any of them.
DISABLED = (
    "",
    "",
    "model_runner.accepted_logprobs",
    "spec_decode.draft_model_proposer",
    "spec_decode.rejected_token_count,worker",
    "spec_decode.eagle_proposer",
    "model_runner",
    "spec_decode.*",
)


@dataclass(frozen=True)
class Outcome:
    """What came of one order.

    Attributes:
        failed: the steps that raised, with "Type: message".
        state: see :func:`tests.order.real_hosts_state.state`; empty after a crash.
        crash: how the process ended before it could tell its state, else empty.
    """

    order: tuple[str, ...]
    failed: dict[str, str]
    state: dict[str, Any]
    crash: str = ""


def explore(orders: Iterable[Sequence[str]], log: Path, jobs: int = 2) -> Iterator[Outcome]:
    """The outcome of every different order, as they come. Those that begin alike should stand together:
    ``jobs`` processes take a part of the list each. What they print goes to ``log``.

    Raises:
        RuntimeError: the process at the root of the tree ended early; the text has the end of its log.
    """
    missing = dict.fromkeys(map(tuple, orders))
    with tempfile.TemporaryDirectory(prefix="orders-") as folder, log.open("w") as stderr:
        asked = Path(folder, "orders.json")
        asked.write_text(json.dumps(list(missing)))
        process = subprocess.Popen(
            [sys.executable, __file__, str(asked), str(jobs)],
            env=_environment(folder),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                order, *found = json.loads(line)
                outcome = Outcome(tuple(order), *found)
                if outcome.order in missing:  # else it was told before its process crashed in another order
                    del missing[outcome.order]
                    yield outcome
        finally:
            if missing:  # nobody reads on, or it crashed
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            code = process.wait()
    if code or missing:
        tail = log.read_text(errors="replace")[-4000:]
        raise RuntimeError(f"exit status {code} with {len(missing)} orders to go:\n{tail}")


def every_order(modules: Sequence[str]) -> list[tuple[str, ...]]:
    """Every permutation, activated at the start."""
    return [("arm", *order) for order in permutations(modules)]


def every_late_order(modules: Sequence[str]) -> list[tuple[str, ...]]:
    """Every permutation with vLLM's entry point called before, between or after, where no ``.pth`` ran."""
    return [
        (*order[:position], "register", *order[position:])
        for order in permutations(modules)
        for position in range(len(modules) + 1)
    ]


def random_orders(rng: random.Random, count: int) -> list[tuple[str, ...]]:
    """Different orders of 8 to 25 modules, activated early, or late at any position, some with patches off.

    Forty share each beginning, drawn as the rest is: with one of its own each would take five times as long.
    """
    orders: dict[tuple[str, ...], None] = {}
    while len(orders) < count:
        early = rng.random() < 0.5
        first = rng.sample(MODULES, 4)
        off = _some_patches_off(rng)
        for _ in range(min(40, count - len(orders))):
            rest = rng.sample([name for name in MODULES if name not in first], rng.randint(4, 21))
            if early:
                order = [*off, "arm", *first, *rest, *rng.choice(([], ["register"]))]
            else:
                late = [*_some_patches_off(rng), rng.choice(("register", "activate"))]
                position = rng.randint(0, len(rest))
                order = [*first, *rest[:position], *late, *rest[position:]]
            orders[tuple(order)] = None
    return list(orders)


def _some_patches_off(rng: random.Random) -> list[str]:
    disabled = rng.choice(DISABLED)
    return [f"ASCEND_SPECPATCH_DISABLE={disabled}"] if disabled else []


def reference(order: Sequence[str]) -> tuple[str, ...]:
    """The plainest order with the same settings: activated at the start, then the HOLDERS."""
    return (*(step for step in order if "=" in step), "arm", *HOLDERS)


def without_patches(order: Sequence[str]) -> tuple[str, ...]:
    """The same imports on the hosts alone."""
    return tuple(step for step in order if step not in ("arm", "register", "activate") and "=" not in step)


def _environment(folder: str) -> dict[str, str]:
    foreign = ("ASCEND_SPECPATCH", "PYTHON", "PYTEST", "VLLM_", "XDG_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    ours = {"PYTHONPATH": str(CHECKOUT / ".editable"), "VLLM_CACHE_ROOT": folder, "XDG_RUNTIME_DIR": folder}
    return {**inherited, **ENVIRONMENT, **ours}


# ---- in the processes of the tree --------------------------------------------------------------------------

END = ""  # marks in a tree that an order ends here
Tree = dict[str, Any]


def main(asked: Path, jobs: int) -> None:
    """Explore the orders in the file ``asked``; one outcome a line to standard output."""
    from ascend_specpatch import bootstrap

    bootstrap.disarm()  # an order says itself what activates
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the hosts print must not look like an outcome
    _import_what_hosts_need()
    # A collection would copy the pages that the processes share. Only what is no host is frozen: aliases are
    # looked for among the objects that the collector knows.
    gc.disable()
    gc.collect()
    gc.freeze()
    orders = json.loads(asked.read_text())
    part = -(-len(orders) // jobs)
    children = []
    for start in range(0, len(orders), part):
        tree: Tree = {}
        for order in orders[start : start + part]:
            functools.reduce(lambda node, step: node.setdefault(step, {}), [*order, END], tree)
        children.append(_fork(_branch, tree, (), {}, out))
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


def _import_what_hosts_need() -> None:
    """All that a process with these hosts has loaded, but the hosts. A child finds out what that is."""
    for name in ("torch_npu", "transformers", "torch._inductor.compile_fx", "fastapi", "openai", "xgrammar"):
        importlib.import_module(name)
    reader, writer = os.pipe()
    child = _fork(_tell_what_hosts_import, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        names = pipe.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0, "the hosts do not import"
    for name in names:
        if name.partition(".")[0] not in (*HOSTS, "ascend_specpatch", "tests", "__main__"):
            with contextlib.suppress(Exception):  # some only exist once their maker has run
                importlib.import_module(name)
    assert not any(name in sys.modules for name in HOSTS)


def _tell_what_hosts_import(writer: int) -> None:
    for name in MODULES:
        importlib.import_module(name)
    with os.fdopen(writer, "w") as pipe:
        pipe.write("\n".join(sys.modules))


def _grow(tree: Tree, done: tuple[str, ...], failed: dict[str, str], out: Any) -> None:
    """Take the steps of ``tree`` after those ``done``, in this process as long as there is one way to go."""
    while len(tree) == 1:
        ((step, tree),) = tree.items()
        if step == END:
            _tell(Outcome(done, failed, _guarded(state)), out)
            return
        done = (*done, step)
        try:
            _guarded(_take, step)
        # Whatever a module raises is an outcome.
        except BaseException as error:
            failed = {**failed, step: f"{type(error).__name__}: {error}"}
    _branch(tree, done, failed, out)


def _branch(tree: Tree, done: tuple[str, ...], failed: dict[str, str], out: Any) -> None:
    """A fork for each way to go; tells of those that crash."""
    for step, subtree in tree.items():
        child = _fork(_grow, {step: subtree}, done, failed, out)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            for order in _orders({step: subtree}, done):
                _tell(Outcome(order, failed, {}, f"exit status {status}"), out)


def _orders(tree: Tree, done: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for step, subtree in tree.items():
        yield from [done] if step == END else _orders(subtree, (*done, step))


def _fork(function: Callable[..., None], *arguments: Any) -> int:
    """The id of a process that calls the function."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function(*arguments)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return child


def _tell(outcome: Outcome, out: Any) -> None:
    line = json.dumps(list(asdict(outcome).values()))
    with open(__file__) as lock:  # a long line of one process must not be cut by one of another
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(line, file=out, flush=True)


def _guarded(function: Any, *arguments: Any) -> Any:
    """A process that hangs says where, and ends."""
    import faulthandler

    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    try:
        return function(*arguments)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _take(step: str) -> None:
    if "=" in step:
        name, _, value = step.partition("=")
        os.environ[name] = value
    elif step in ("arm", "register", "activate"):
        record_changes()
        _ACTIVATE[step]()
    else:
        importlib.import_module(step)


def _arm() -> None:
    import ascend_specpatch

    ascend_specpatch.arm()


def _register() -> None:
    from ascend_specpatch import bootstrap

    bootstrap.register()


def _activate() -> None:
    from ascend_specpatch import hooks

    hooks.activate()


_ACTIVATE = {"arm": _arm, "register": _register, "activate": _activate}

if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
