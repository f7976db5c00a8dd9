# SPDX-License-Identifier: Apache-2.0
"""``ascend-specpatch drift``: which patches another release of the hosts would have refused, and what changed
there; between two supported pairs, which patches needed another form. Nothing is imported, downloaded or
unpacked."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ascend_specpatch import archives, fingerprints, hosts, report, syntax, verify
from ascend_specpatch.archives import ArchiveError
from ascend_specpatch.console import complain, load_registry, say, say_json
from ascend_specpatch.fingerprints import (
    Finding,
    ModuleRecord,
    NoSource,
    ObjectState,
    Reader,
    Record,
    SourceMismatch,
    installed_source,
)
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Patch
from ascend_specpatch.verify import BAD_USAGE, DIFFERENT, SAME, UsageError

# What is given a release: distribution -> top-level package.
_PACKAGES: Final = {"vllm": "vllm", "vllm-ascend": "vllm_ascend"}


def add_parsers(commands: Any) -> None:
    """Add ``verify`` and ``drift`` to the subparsers ``commands``."""
    verify.add_parser(commands)
    add_parser(commands)


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser(
        "drift", help="which patches another release of the hosts would have refused, and what changed there"
    )
    for option, what in (("", "the release to look at"), ("base-", "what to compare it with")):
        for distribution in _PACKAGES:
            parser.add_argument(
                f"--{option}{distribution}",
                metavar="X",
                help=f"{what}: a wheel, source distribution or folder of {distribution}, or its version",
            )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=drift)


def drift(options: argparse.Namespace) -> int:
    """Compare releases of the hosts with the verified source, or with other releases.

    Args:
        options: ``vllm``, ``vllm_ascend``, ``base_vllm``, ``base_vllm_ascend`` (each a path, the installed
            version, or None for what is installed), ``json``.

    Returns:
        0: no patch would be refused (or is in another form); 1: some would; 2: bad usage.
    """
    try:
        between = _supported_pairs(options)
        return _drift(options) if between is None else _between(*between, as_json=options.json)
    except (UsageError, ArchiveError, SourceMismatch) as error:
        complain(str(error))
        return DIFFERENT if isinstance(error, SourceMismatch) else BAD_USAGE


@dataclass(frozen=True)
class _Release:
    """One release of both hosts.

    Attributes:
        labels: top-level package -> what to call its release.
        readers: top-level package -> its reader; others are read as they are installed.
    """

    labels: Mapping[str, str]
    readers: Mapping[str, Reader]

    def __str__(self) -> str:
        return " + ".join(self.labels.values())

    def read(self, module: str) -> bytes:
        return self.readers.get(module.partition(".")[0], installed_source)(module)

    def label(self, module: str) -> str:
        return self.labels.get(module.partition(".")[0], "installed")


@dataclass(frozen=True)
class _Verdict:
    """What a release means for one patch; ``refusal`` is empty where the patch would be applied."""

    findings: Sequence[Finding]
    refusal: str


def _drift(options: argparse.Namespace) -> int:
    pair = hosts.installed()
    recorded = pair if pair in hosts.SUPPORTED else hosts.SUPPORTED[-1]
    patches = [
        patch
        for patch in (p.on(recorded) for p in load_registry() if p.is_needed_on(recorded))
        if verify.declares(patch)
    ]
    modules: set[str] = set()
    for patch in patches:
        with contextlib.suppress(SourceMismatch):  # its verdict says so
            modules |= {name.partition(":")[0] for name in fingerprints.leans_on(patch)}
    given = _release(options, "", pair, modules)
    base = _release(options, "base_", pair, modules)
    as_verified = not base.readers  # nothing is given to compare with
    if as_verified:
        base = _Release(_labels(recorded), {})

    verdicts: dict[str, _Verdict] = {}
    for patch in patches:
        verdicts[patch.id] = _judge(patch, recorded if as_verified else None, base, given, verdicts)
    differences = _differences((verdict.findings for verdict in verdicts.values()), base, given)
    if options.json:
        rows = [
            {
                "id": patch_id,
                "refused": bool(verdict.refusal),
                "reason": verdict.refusal,
                "objects": [asdict(finding) for finding in verdict.findings],
            }
            for patch_id, verdict in verdicts.items()
        ]
        content = {"base": str(base), "given": str(given), "patches": rows, "differences": differences}
        say_json(content)
    else:
        say(f"from  {base}{', as verified' if as_verified else ''}\nto    {given}\n")
        table = [
            (patch_id, "would be refused" if verdict.refusal else "untouched", verdict.refusal)
            for patch_id, verdict in verdicts.items()
        ]
        say(report.text_table(("PATCH", "VERDICT", "REASON"), table))
        for text in differences.values():
            say("\n" + text.removesuffix("\n"))
    return DIFFERENT if any(verdict.refusal for verdict in verdicts.values()) else SAME


def _supported_pairs(options: argparse.Namespace) -> tuple[HostPair, HostPair] | None:
    """The pairs to compare, base first, where the options name versions of supported ones."""
    installed = hosts.installed()
    named = [
        HostPair(
            *(
                getattr(options, prefix + package) or getattr(installed, package)
                for package in _PACKAGES.values()
            )
        )
        for prefix in ("base_", "")
    ]
    base, given = named
    return (base, given) if base != given and {*named} <= {*hosts.SUPPORTED} else None


def _between(base: HostPair, given: HostPair, *, as_json: bool) -> int:
    """What became of each patch from one supported pair to another, from what was verified on both."""
    rows = [(patch.id, *_became(patch, base, given)) for patch in load_registry() if verify.declares(patch)]
    if as_json:
        patches = [dict(zip(("id", "verdict", "reason"), row, strict=True)) for row in rows]
        say_json({"base": str(base), "given": str(given), "patches": patches})
    else:
        say(f"from  {base}, as verified\nto    {given}, as verified\n")
        say(report.text_table(("PATCH", "VERDICT", "REASON"), rows))
    return DIFFERENT if any(verdict == "another form" for _, verdict, _ in rows) else SAME


def _became(patch: Patch, base: HostPair, given: HostPair) -> tuple[str, str]:
    """A verdict and the reason for it.

    Raises:
        SourceMismatch: the verified source cannot be read.
    """
    before, after = patch.on(base), patch.on(given)
    if not patch.is_for(given):
        return "not for this host", ""
    if unneeded := patch.unneeded_on(given):
        return "unneeded", unneeded
    if not patch.is_needed_on(base):
        return "new", patch.unneeded_on(base) or "not for the older pair"
    if (before.body, before.target) != (after.body, after.target):
        return "another form", after.body if before.body != after.body else f"of {after.target}"
    names = fingerprints.leans_on(after)
    records = [fingerprints.verified_for(after).pairs.get(str(pair), {}) for pair in (base, given)]
    old, new = (verify.by_name(record) for record in records)
    differing = sum(old.get(name) != new.get(name) for name in names)
    if not differing:
        return "untouched", ""
    return "the same form", f"{differing} of {len(names)} objects differ, verified on both"


def _judge(
    patch: Patch,
    recorded: HostPair | None,
    base: _Release,
    given: _Release,
    earlier: Mapping[str, _Verdict],
) -> _Verdict:
    try:
        names = fingerprints.leans_on(patch)
        findings = fingerprints.compare(names, _record(patch, recorded, base, names), given.read)
    except SourceMismatch as error:
        return _Verdict([], str(error))
    differing = sum(finding.state is not ObjectState.VERIFIED for finding in findings)
    refusal = f"{differing} of {len(names)} objects differ" if differing else ""
    for required in patch.requires:
        if not refusal and required in earlier and earlier[required].refusal:
            refusal = f"needs {required}"
    return _Verdict(findings, refusal)


def _release(options: argparse.Namespace, prefix: str, pair: HostPair, modules: Iterable[str]) -> _Release:
    """What the options name.

    Raises:
        UsageError, ArchiveError: it cannot be found or read.
    """
    labels, readers = _labels(pair), {}
    for distribution, package in _PACKAGES.items():
        given: str | None = getattr(options, prefix + package)
        installed: str | None = getattr(pair, package)
        if given is None or given == installed:
            continue
        if os.path.lexists(given):
            its = [module for module in modules if module.partition(".")[0] == package]
            readers[package] = archives.reader(Path(given), package, its)
            labels[package] = Path(given).name or given
        else:
            raise UsageError(
                f"{given} is neither a file or folder nor the installed version of {distribution} "
                f"({installed or 'none is installed'}). Nothing is downloaded: give a wheel or source "
                f"distribution, from `pip download --no-deps {distribution}=={given}`"
            )
    return _Release(labels, readers)


def _labels(pair: HostPair) -> dict[str, str]:
    versions = {distribution: getattr(pair, package) for distribution, package in _PACKAGES.items()}
    return {
        _PACKAGES[distribution]: f"{distribution} {version}" if version else f"no {distribution}"
        for distribution, version in versions.items()
    }


def _record(patch: Patch, recorded: HostPair | None, base: _Release, names: Sequence[str]) -> Record:
    """What to compare with: the verified digests of the pair ``recorded``, else those of ``base``.

    Raises:
        SourceMismatch: there is no verified source for the pair.
    """
    if recorded is not None:
        record = fingerprints.verified_for(patch).pairs.get(str(recorded))
        if record is None:
            raise SourceMismatch(f"was never verified on {recorded}")
        return record
    found: dict[str, ModuleRecord] = {}
    for name in names:
        with contextlib.suppress(NoSource):  # an object that the base lacks stays unverified
            for module, entry in fingerprints.record_of([name], base.read).items():
                known = found.get(module, ModuleRecord(entry.source, {}))
                found[module] = ModuleRecord(entry.source, {**known.objects, **entry.objects})
    return found


def _differences(findings: Iterable[Sequence[Finding]], base: _Release, given: _Release) -> dict[str, str]:
    """A unified diff, or a sentence where there can be none, of each object that is not as verified."""
    differences: dict[str, str] = {}
    for finding in (finding for each in findings for finding in each):
        if finding.name in differences or finding.state is ObjectState.VERIFIED:
            continue
        if finding.state is ObjectState.MISSING:
            differences[finding.name] = f"{finding.name} is gone: {finding.detail}"
        elif finding.state is ObjectState.UNVERIFIED:
            differences[finding.name] = f"{finding.name} is not in {base}"
        else:
            differences[finding.name] = _diff(finding, base, given)
    return differences


def _diff(finding: Finding, base: _Release, given: _Release) -> str:
    module, _, qualname = finding.name.partition(":")
    try:
        before = base.read(module)
        if fingerprints.digest(before, qualname) != finding.expected:
            raise NoSource("the installed source is not the verified one")
    except NoSource as error:
        return (
            f"{finding.name} changed (expected {finding.expected}, found {finding.found}). A diff needs the "
            f"verified release, and {error}: name it with --base-vllm and --base-vllm-ascend"
        )
    old, new = (syntax.excerpt(source, qualname) for source in (before, given.read(module)))
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"{finding.name} ({base.label(module)})",
        f"{finding.name} ({given.label(module)})",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
