# SPDX-License-Identifier: Apache-2.0
"""The command line: ``ascend-specpatch list | status | explain | doctor | verify | drift``.

Exit codes: 0 all is well; 1 something is not: the hosts are no supported pair, a patch is refused or could
not be applied, here or in a running process, doctor found a fault, a host object is not the verified one; 2
bad usage or bad settings; 141, as shells have it, where the reader of the output went away.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ascend_specpatch import (
    __version__,
    bootstrap,
    console,
    doctor,
    drift,
    fingerprints,
    hooks,
    hosts,
    processes,
    report,
    syntax,
)
from ascend_specpatch.activation import PatchRefused
from ascend_specpatch.console import OutputError, complain, load_registry, say, say_json
from ascend_specpatch.fingerprints import SourceMismatch
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.processes import ProcessReport
from ascend_specpatch.providers import described
from ascend_specpatch.registry import Patch, Plan, RegistryError, State
from ascend_specpatch.report import Report, plain
from ascend_specpatch.settings import Settings, SettingsError, nearest, shown

OK, NOT_WELL, BAD_USAGE, READER_GONE = 0, 1, 2, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        with console.reserved() as report:
            with contextlib.redirect_stdout(report):  # for --help and --version
                options = _parser().parse_args(arguments)
            code: int = options.run(options)
            return code
    except OutputError as error:
        if isinstance(error.__cause__, BrokenPipeError):
            return READER_GONE
        complain(str(error))
        return NOT_WELL
    except (PatchRefused, SourceMismatch) as error:
        complain(str(error))
        return NOT_WELL
    except (SettingsError, RegistryError) as error:
        complain(str(error))
        return BAD_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ascend-specpatch",
        description="What ascend-specpatch patches in vLLM and vllm-ascend, and what became of it.",
        epilog="Exit codes: 0 all is well; 1 something is not; 2 bad usage or bad settings.",
    )
    parser.add_argument("--version", action="version", version=f"ascend-specpatch {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser(
        "list", help="the patches in order, with what the settings and the hosts make of them"
    )
    listing.set_defaults(run=_list)

    status = commands.add_parser(
        "status", help="host versions, activation, the state of every patch here and in running processes"
    )
    status.add_argument(
        "--import",
        action="store_true",
        dest="really",
        help="import the hosts and report what was applied or refused",
    )
    status.set_defaults(run=_status)

    explain = commands.add_parser(
        "explain", help="one patch: what, why, how, until when, and what hangs on it"
    )
    explain.add_argument("patch", metavar="ID", help="stage.name, as list shows it")
    explain.set_defaults(run=_explain)

    examine = commands.add_parser(
        "doctor", help="what keeps the patches from working here, and the command that mends it"
    )
    examine.add_argument(
        "--quick", action="store_true", help="do not import the hosts to see what would be refused"
    )
    examine.set_defaults(run=_doctor)

    for command in (listing, status, explain, examine):
        command.add_argument("--json", action="store_true", help="print JSON")
    drift.add_parsers(commands)
    return parser


def _list(options: argparse.Namespace) -> int:
    plan = _plan()
    if options.json:
        facts = [_facts(plan, number) for number in range(len(plan.choices))]
        say_json({**Report(plan).as_dict(), "patches": facts})
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
        say(report.text_table(("#", "PATCH", "TARGET", "STATE", "SUMMARY"), rows))
        _print_problems(plan)
    return OK


def _status(options: argparse.Namespace) -> int:
    armed = bootstrap.armed()
    plan = _plan()
    found = _import_targets(plan) if options.really else Report(plan)
    lacking = [
        row
        for row in found.rows()
        if row.state is State.REFUSED or (options.really and row.state is State.WAITING)
    ]
    running, unreadable = processes.read_all()
    refused_elsewhere = [process for process in running if _states(process).get(State.REFUSED)]
    if options.json:
        value = {
            **found.as_dict(),
            "supported": plan.pair in hosts.SUPPORTED,
            "armed": armed,
            "imported": options.really,
            "processes": [asdict(process) for process in running],
            "unreadable": unreadable,
        }
        say_json(value)
    else:
        say(_summary(plan.pair, armed))
        say()
        say(found.table())
        _print_notes(found.as_dict())
        _print_problems(plan)
        _print_running(running, unreadable)
    unsupported = bool(found.ids(State.NOT_FOR_THIS_HOST)) and plan.pair not in hosts.SUPPORTED
    return NOT_WELL if lacking or refused_elsewhere or unsupported else OK


def _explain(options: argparse.Namespace) -> int:
    plan = _plan()
    ids = [choice.patch.id for choice in plan.choices]
    if options.patch not in ids:
        hint = nearest(options.patch, ids)
        complain(f"no patch is named {shown(options.patch)}; {hint}")
        return BAD_USAGE
    facts = _facts(plan, ids.index(options.patch))
    if options.json:
        say_json(facts)
        return OK
    words = [
        ("patch", f"{facts['id']}, number {facts['position']} of {len(ids)}"),
        ("target", facts["target"]),
        ("state", facts["state"] + (f": {facts['reason']}" if facts["reason"] else "")),
        ("requires", ", ".join(facts["requires"]) or "nothing"),
        ("comes after", ", ".join(facts["after"])),
        ("goes off with it", ", ".join(facts["goes_off_with_it"]) or "nothing"),
        ("is for", " or ".join(str(HostPair(**pair)) for pair in facts["hosts"])),
        ("comes from", facts["provider"]),
        ("file", facts["implementation"]),
        ("switch it off", f"ASCEND_SPECPATCH_DISABLE={facts['id']}"),
        ("leans on", f"{len(facts['leans_on'])} objects of the hosts"),
    ]
    width = max(len(word) for word, _ in words)
    for word, text in words:
        if text:
            say(f"{word.ljust(width)}  {plain(text)}")
    for name in facts["leans_on"]:
        say(f"{' ' * width}  {name}")
    say(f"\n{facts['documentation'] or facts['summary']}")
    return OK


def _doctor(options: argparse.Namespace) -> int:
    findings = doctor.examine(import_hosts=not options.quick)
    faults = [finding for finding in findings if finding.verdict == "fault"]
    if options.json:
        say_json({"findings": [asdict(finding) for finding in findings]})
    else:
        rows = [(finding.check, finding.verdict, finding.found) for finding in findings]
        say(report.text_table(("CHECK", "VERDICT", "FOUND"), rows))
        for finding in findings:
            if finding.mend:
                say(f"\n{finding.check} ({finding.verdict}): to mend it\n    {finding.mend}")
    return NOT_WELL if faults else OK


def _plan() -> Plan:
    return load_registry().choose(Settings.from_environ(), hosts.installed())


def _import_targets(plan: Plan) -> Report:
    """Import every target and mark what did not come to be applied with the reason."""
    found = hooks.activate("ascend-specpatch status --import")
    for target in dict.fromkeys(patch.target for patch in plan.chosen):
        try:
            importlib.import_module(target)
        # The report says how a host fails here, whatever way it is; it may also end the process.
        except (Exception, SystemExit) as error:
            for row in found.rows():
                if row.target == target and row.state is State.WAITING:
                    found.mark(row.id, State.REFUSED, f"its module does not import: {described(error)}")
    return hooks.refresh()


def _facts(plan: Plan, index: int) -> dict[str, Any]:
    """All there is to say about one patch, as JSON values."""
    choice = plan.choices[index]
    patch = choice.patch
    goes_off = {patch.id}
    for other in plan.choices[index:]:
        if goes_off & set(other.patch.requires):
            goes_off.add(other.patch.id)
    return {
        "id": patch.id,
        "stage": patch.stage,
        "position": index + 1,
        "target": patch.target,
        "summary": patch.summary,
        "state": _planned(choice.state),
        "reason": choice.reason,
        "requires": list(patch.requires),
        "after": list(patch.after),
        "goes_off_with_it": [c.patch.id for c in plan.choices if c.patch.id in goes_off - {patch.id}],
        "default": patch.default,
        "hosts": [asdict(pair) for pair in patch.hosts or hosts.SUPPORTED if patch.is_needed_on(pair)],
        "provider": patch.provider,
        "implementation": patch.body,
        "leans_on": list(fingerprints.leans_on(patch)),
        "documentation": _documentation(patch),
    }


def _documentation(patch: Patch) -> str:
    """The docstring of the patch's file, which is read and not run."""
    try:
        return ast.get_docstring(ast.parse(fingerprints.installed_source(patch.body))) or ""
    except (fingerprints.NoSource, *syntax.ERRORS):
        return ""


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


def _print_running(running: list[ProcessReport], unreadable: list[str]) -> None:
    if running:
        say("\nRunning processes")
        states = (State.APPLIED, State.WAITING, State.OFF, State.REFUSED)
        rows = [
            (
                str(process.pid),
                process.title(),
                _age(time.time() - process.written_at),
                str(process.report.get("digest", "")),
                *(str(_states(process).get(state, 0)) for state in states),
            )
            for process in running
        ]
        header = ("PID", "PROCESS", "WRITTEN", "DIGEST", *(str(state).upper() for state in states))
        say(report.text_table(header, rows))
        for process in running:
            _print_notes(process.report, f"{process.title()} ({process.pid}): ")
    for problem in unreadable:
        say(f"\n{plain(problem)}")


def _states(process: ProcessReport) -> dict[str, int]:
    """How many patches of a process are in each state."""
    counts: dict[str, int] = {}
    for row in process.report.get("patches", ()):
        counts[row["state"]] = counts.get(row["state"], 0) + 1
    return counts


def _print_notes(value: dict[str, Any], where: str = "") -> None:
    """What the tables have no column for: refusals of other processes, and other patchers."""
    for row in value.get("patches", ()):
        if where and row["state"] == State.REFUSED:
            say(plain(f"{where}{row['id']} is refused: {row['reason']}"))
        for note in row["notes"]:
            say(plain(f"{where}{row['id']}: {note}"))


def _print_problems(plan: Plan) -> None:
    for problem in plan.problems:
        say(f"\n{plain(problem)}.")


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _planned(state: State) -> str:
    return "on" if state is State.WAITING else str(state)


if __name__ == "__main__":
    sys.exit(main())
