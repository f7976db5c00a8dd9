# SPDX-License-Identifier: Apache-2.0
"""Imports once and forks a child for each case.

A fresh interpreter spends most of a case's time importing torch, transformers and vLLM. The server reads one
request a line and answers each with one line, the child's wait status or "timeout".

A *warm* server imports of the hosts what a user's script imports and nothing further: the worker's modules,
which our patches target, load in the child in their real order. A *bare* one imports no host at all, so that
each child may have patch settings of its own, which are read when the first host is imported.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import time

from .child import Request, serve

# What the hosts import in any case from packages that are not patched: with `import vllm`, and on the way up.
_EARLY = (
    *("transformers", "openai", "scipy.stats", "fastapi", "aiohttp", "mistral_common", "torchvision", "cv2"),
    *("xgrammar", "lmformatenforcer", "prometheus_client", "gguf", "llguidance", "zmq"),
)
_LATE = ("compressed_tensors", "torch._inductor.compile_fx", "numba", "ray", "einops")


def main(kind: str) -> None:
    """Serve until the input ends; ``kind`` is "warm" or "bare"."""
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the hosts print must not look like an answer
    if kind == "warm":
        from vllm import LLM, SamplingParams  # noqa: F401 - the imports of a user's script
    for name in (*_EARLY, *_LATE):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # vLLM collects garbage ten times during start-up; each would walk all of the above
    print("ready", file=answers, flush=True)
    for line in requests:
        request = Request.from_json(line)
        print(_fork(request), file=answers, flush=True)


def _fork(request: Request) -> str:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()  # so that a time-out ends its descendants as well
            serve(request)
            code = 0
        finally:
            os._exit(code)  # no interpreter shutdown: it would run the server's own exit handlers
    deadline = time.monotonic() + request.case.timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return str(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"
