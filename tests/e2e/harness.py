# SPDX-License-Identifier: Apache-2.0
"""Runs cases and remembers their outcomes for the session.

Cases of one process go to a fork server, one for each environment, because hosts and emulator read the
environment when they are imported. Those that differ in patch settings (``ASCEND_SPECPATCH_*``) alone share a
server that has imported no host yet. Cases of several processes get an interpreter of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import host
from .cases import Case, Outcome
from .child import Request, environment

_PROGRAM = Path(__file__).with_name("__main__.py")
_PATCH_SETTING = "ASCEND_SPECPATCH_"
_MAX_SERVERS = 2  # each holds about 1 GB


class Harness:
    def __init__(self, models: Path, scratch: Path, cache: Path) -> None:
        self.models, self.scratch = models, scratch
        # vLLM looks at a model's class in a process that costs more than all else of a case, and remembers
        # what it saw by the class's name: two releases would write over each other's.
        self.cache = cache / str(host.PAIR.vllm)
        self._servers: dict[str, _ForkServer] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._numbers = itertools.count()

    def run_together(self, cases: Sequence[Case]) -> None:
        """Run cases that need each other, such as data parallel ranks. Each has processes of its own."""
        assert all(case.processes != "one" for case in cases)
        with ThreadPoolExecutor(len(cases)) as threads:
            list(threads.map(self.run, cases))

    def run(self, case: Case) -> Outcome:
        """The outcome of a case, from an earlier run in this session where there was one."""
        key = case.to_json()
        if key not in self._outcomes:
            self._outcomes[key] = self._run(case)
        return self._outcomes[key]

    def _run(self, case: Case) -> Outcome:
        number = next(self._numbers)
        name = "-".join(
            str(part) for part in (f"{number:03d}", case.model, case.method, case.draft) if part is not None
        )
        request = Request(case, self.models, self.scratch / f"{name}.log", self.scratch / f"{name}.json")
        own_process = case.fresh or case.processes != "one"
        ending = self._own_process(request) if own_process else self._server(case).run(request)
        if request.outcome.exists():
            return Outcome.from_json(request.outcome.read_text())
        return Outcome(error=f"{ending}: no outcome was written", log=str(request.log))

    def _environment(self, case: Case) -> dict[str, str]:
        # pytest changes its variable with each test; a server is for all tests of its environment.
        foreign = ("ASCEND_SPECPATCH", "PYTEST_CURRENT_TEST")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        ours = {"VLLM_CACHE_ROOT": str(self.cache), "VLLM_CONFIG_ROOT": str(self.cache / "config")}
        return {**inherited, **ours, **environment(case)}

    def _server(self, case: Case) -> _ForkServer:
        env = {
            name: value
            for name, value in self._environment(case).items()
            if not name.startswith(_PATCH_SETTING)
        }
        kind = "bare" if any(name.startswith(_PATCH_SETTING) for name in case.env) else "warm"
        key = json.dumps([kind, env], sort_keys=True)
        server = self._servers.pop(key, None)
        if server is None or not server.alive:
            while len(self._servers) >= _MAX_SERVERS:
                self._servers.pop(next(iter(self._servers))).close()
            server = _ForkServer(
                kind, env, self.scratch / f"server-{len(list(self.scratch.glob('server-*')))}.log"
            )
        self._servers[key] = server  # last: the one used longest ago is closed first
        return server

    def _own_process(self, request: Request) -> str:
        asked = request.outcome.with_suffix(".request")
        asked.write_text(request.to_json())
        command = [sys.executable, str(_PROGRAM), "run", str(asked)]
        process = subprocess.Popen(
            command, env=self._environment(request.case), cwd=self.scratch, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return f"exit code {process.wait(request.case.timeout)}"
        except subprocess.TimeoutExpired:
            return f"no end after {request.case.timeout:.0f} s"
        finally:
            _kill_group(process.pid)  # workers that outlived it
            process.wait()

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()


class _ForkServer:
    def __init__(self, kind: str, env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), "serve", kind], env=env, cwd=log.parent, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._ready = self._answer()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def run(self, request: Request) -> str:
        if self._ready != "ready":
            request.log.write_text(self.log.read_text(errors="replace"))
            return "importing vllm failed"
        assert self.process.stdin is not None
        print(request.to_json(), file=self.process.stdin, flush=True)
        answer = self._answer()
        return (
            f"no end after {request.case.timeout:.0f} s" if answer == "timeout" else f"wait status {answer}"
        )

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(leader, signal.SIGKILL)
