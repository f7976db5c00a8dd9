# SPDX-License-Identifier: Apache-2.0
"""``ascend-specpatch list`` and ``ascend-specpatch status``.

Exit codes: 0 all is well; 1 a patch is refused or, with ``--import``, could not be applied; 2 bad usage or
bad settings; 141, as shells have it, where the reader of the output went away.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence

from ascend_specpatch import __version__, bootstrap, hooks, hosts, registry, report
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Plan, State
from ascend_specpatch.report import Report
from ascend_specpatch.settings import Settings, SettingsError

OK, REFUSED, BAD_USAGE, READER_GONE = 0, 1, 2, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a reason may quote what this terminal cannot show
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except hooks.PatchRefused as error:
        print(f"ascend-specpatch: {error}", file=sys.stderr)
        return REFUSED
    except (SettingsError, registry.RegistryError) as error:
        print(f"ascend-specpatch: {error}", file=sys.stderr)
        return BAD_USAGE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ascend-specpatch",
        description="What ascend-specpatch patches in vLLM and vllm-ascend, and what became of it.",
        epilog="Exit codes: 0 all is well; 1 a patch is refused or not applied; 2 bad usage or bad settings.",
    )
    parser.add_argument("--version", action="version", version=f"ascend-specpatch {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="the patches in order, with what the settings and the hosts make of them"
    )
    listing.set_defaults(run=_list)
    status = commands.add_parser("status", help="host versions, activation and the state of every patch here")
    status.add_argument(
        "--import",
        action="store_true",
        dest="really",
        help="import the hosts and report what was applied or refused",
    )
    status.set_defaults(run=_status)
    for command in (listing, status):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _list(options: argparse.Namespace) -> int:
    plan = _plan()
    if options.json:
        print(Report(plan).json())
    else:
        rows = [
            (
                str(number),
                c.patch.id,
                c.patch.target,
                _planned(c.state),
                c.patch.summary + (f" [{c.reason}]" if c.reason else ""),
            )
            for number, c in enumerate(plan.choices, 1)
        ]
        print(report.text_table(("#", "PATCH", "TARGET", "STATE", "SUMMARY"), rows))
    return OK


def _status(options: argparse.Namespace) -> int:
    plan = _plan()
    armed = bootstrap.armed()
    found = _import_targets(plan) if options.really else Report(plan)
    lacking = [
        row
        for row in found.rows()
        if row.state is State.REFUSED or (options.really and row.state is State.WAITING)
    ]
    if options.json:
        supported = plan.pair in hosts.SUPPORTED
        print(
            json.dumps(
                {**found.as_dict(), "supported": supported, "armed": armed, "imported": options.really},
                indent=2,
            )
        )
    else:
        print(_summary(plan.pair, armed))
        print()
        print(found.table())
    return REFUSED if lacking else OK


def _plan() -> Plan:
    return registry.load().choose(Settings.from_environ(), hosts.installed())


def _import_targets(plan: Plan) -> Report:
    """Import every target and mark what did not come to be applied with the reason."""
    found = hooks.activate("ascend-specpatch status --import")
    for target in dict.fromkeys(patch.target for patch in plan.chosen):
        try:
            with contextlib.redirect_stdout(sys.stderr):  # vLLM logs to stdout, which is for the report
                importlib.import_module(target)
        except Exception as error:  # the report says how a host fails here, whatever way it is
            for row in found.rows():
                if row.target == target and row.state is State.WAITING:
                    found.mark(
                        row.id, State.REFUSED, f"its module does not import: {type(error).__name__}: {error}"
                    )
    return found


def _summary(pair: HostPair, armed: bool) -> str:
    verdict = (
        "supported" if pair in hosts.SUPPORTED else f"not supported; supported: {hosts.supported_text()}"
    )
    activation = (
        "armed at interpreter start"
        if armed
        else "not armed at interpreter start; vLLM's plugin activates late"
    )
    settings = Settings.from_environ()
    if not settings.enabled:
        activation = "off (ASCEND_SPECPATCH=0)"
    return "\n".join(
        (
            f"ascend-specpatch  {__version__}",
            f"vllm              {pair.vllm or 'not installed'}",
            f"vllm-ascend       {pair.vllm_ascend or 'not installed'}",
            f"pair              {verdict}",
            f"activation        {activation}",
            f"policy            a refused patch {'stops vLLM' if settings.strict else 'is a warning'}",
        )
    )


def _planned(state: State) -> str:
    return "on" if state is State.WAITING else str(state)


if __name__ == "__main__":
    sys.exit(main())
