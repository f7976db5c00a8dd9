# SPDX-License-Identifier: Apache-2.0
"""``ascend-specpatch verify`` and ``ascend-specpatch drift``: the installed hosts, or other releases of
them, against the verified source. Nothing is imported, downloaded or unpacked."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ascend_specpatch import archives, fingerprints, hosts, registry, report, syntax
from ascend_specpatch.archives import ArchiveError
from ascend_specpatch.fingerprints import (
    Finding,
    ModuleRecord,
    NoSource,
    ObjectState,
    Reader,
    Record,
    SourceMismatch,
    VerifiedSource,
    installed_source,
)
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Patch

SAME, DIFFERENT, BAD_USAGE = 0, 1, 2

# What is given a release: distribution -> top-level package.
_PACKAGES: Final = {"vllm": "vllm", "vllm-ascend": "vllm_ascend"}


class _Usage(ValueError):
    """Something the caller has to change; the message says what."""


def add_parsers(commands: Any) -> None:
    """Add both commands to the subparsers ``commands``."""
    verify_parser = commands.add_parser(
        "verify", help="compare the installed hosts with the source that each patch was verified on"
    )
    verify_parser.add_argument(
        "--update",
        action="store_true",
        help="record the installed source as verified: after every test has passed on it",
    )
    verify_parser.add_argument(
        "--file",
        type=Path,
        help="the file of verified source to use, instead of those that come with the patches",
    )
    verify_parser.set_defaults(run=verify)
    drift_parser = commands.add_parser(
        "drift", help="which patches another release of the hosts would have refused, and what changed there"
    )
    for option, what in (("", "the release to look at"), ("base-", "what to compare it with")):
        for distribution in _PACKAGES:
            drift_parser.add_argument(
                f"--{option}{distribution}",
                metavar="X",
                help=f"{what}: a wheel, source distribution or folder of {distribution}, or its version",
            )
    drift_parser.set_defaults(run=drift)
    for command in (verify_parser, drift_parser):
        command.add_argument("--json", action="store_true", help="print JSON")


def verify(options: argparse.Namespace) -> int:
    """Compare the installed hosts with the verified source, or record them as verified.

    Args:
        options: ``update``, ``file`` (a Path or None), ``json``.

    Returns:
        0: all is verified (or was recorded); 1: something differs; 2: bad usage.
    """
    try:
        pair = hosts.installed()
        patches = _patches_for(pair)
        return _update(patches, pair, options) if options.update else _verify(patches, pair, options)
    except (_Usage, SourceMismatch) as error:
        print(f"ascend-specpatch: {error}", file=sys.stderr)
        return BAD_USAGE if isinstance(error, _Usage) else DIFFERENT


def drift(options: argparse.Namespace) -> int:
    """Compare releases of the hosts with the verified source, or with other releases.

    Args:
        options: ``vllm``, ``vllm_ascend``, ``base_vllm``, ``base_vllm_ascend`` (each a path, the installed
            version, or None for what is installed), ``json``.

    Returns:
        0: no patch would be refused; 1: some would; 2: bad usage.
    """
    try:
        return _drift(options)
    except (_Usage, ArchiveError) as error:
        print(f"ascend-specpatch: {error}", file=sys.stderr)
        return BAD_USAGE


def _patches_for(pair: HostPair) -> list[Patch]:
    """The patches that declare what they lean on and are for ``pair``.

    Raises:
        _Usage: there is none.
    """
    found = [
        patch
        for patch in registry.load()
        if pair in (hosts.SUPPORTED if patch.hosts is None else patch.hosts) and fingerprints.leans_on(patch)
    ]
    if not found:
        raise _Usage(
            f"found {pair}, and no patch is for it: install {hosts.supported_text()}. A new pair begins with "
            "a line in SUPPORTED of ascend_specpatch/hosts.py"
        )
    return found


# verify


def _verify(patches: Sequence[Patch], pair: HostPair, options: argparse.Namespace) -> int:
    given = _read(options.file) if options.file else None
    findings: dict[str, list[Finding]] = {}
    problems: dict[str, str] = {}
    for patch in patches:
        try:
            verified = given or fingerprints.verified_for(patch)
            record = verified.pairs.get(str(pair), {})
            findings[patch.id] = fingerprints.compare(fingerprints.leans_on(patch), record, installed_source)
        except SourceMismatch as error:
            problems[patch.id] = str(error)
    every = [finding for each in findings.values() for finding in each]
    same = not problems and all(finding.state is ObjectState.VERIFIED for finding in every)
    if options.json:
        rows = [
            {
                "id": patch.id,
                "problem": problems.get(patch.id),
                "objects": [asdict(finding) for finding in findings.get(patch.id, ())],
            }
            for patch in patches
        ]
        print(json.dumps({"pair": str(pair), "verified": same, "patches": rows}, indent=2))
    else:
        table = [
            (patch.id, finding.name, _state(finding))
            for patch in patches
            for finding in findings.get(patch.id, ())
        ]
        table += [(patch_id, "-", problem) for patch_id, problem in problems.items()]
        print(report.text_table(("PATCH", "OBJECT", "STATE"), table))
        count = sum(finding.state is ObjectState.VERIFIED for finding in every)
        print(f"\n{pair}: {count} of {len(every)} objects of {len(patches)} patches are as verified")
    return SAME if same else DIFFERENT


def _state(finding: Finding) -> str:
    if finding.state is ObjectState.CHANGED:
        return f"changed (expected {finding.expected}, found {finding.found})"
    return f"{finding.state} ({finding.detail})" if finding.detail else str(finding.state)


def _update(patches: Sequence[Patch], pair: HostPair, options: argparse.Namespace) -> int:
    """Record the source of the installed pair; other pairs stay as they are."""
    by_path: dict[str, list[Patch]] = {}
    for patch in patches:
        by_path.setdefault(str(options.file or fingerprints.path_for(patch)), []).append(patch)
    changes: dict[str, list[str]] = {}
    for path, its in by_path.items():
        before = _read(Path(path)) if os.path.lexists(path) else VerifiedSource(path, {})
        names = [name for patch in its for name in fingerprints.leans_on(patch)]
        try:
            record = fingerprints.record_of(names, installed_source)
        except NoSource as error:
            raise SourceMismatch(f"{path} stays as it is: {error}") from error
        old = before.pairs.get(str(pair), {})
        changes[path] = _changes(_by_name(old), _by_name(record))
        if old != record:
            _write(Path(path), VerifiedSource(path, {**before.pairs, str(pair): record}).text())
    if options.json:
        print(json.dumps({"pair": str(pair), "changes": changes}, indent=2))
    else:
        for path, lines in changes.items():
            print("\n".join([f"{path}: {pair}", *(lines or ["nothing changed"])]))
    return SAME


def _by_name(record: Record) -> dict[str, str]:
    return {
        f"{module}:{qualname}": digest
        for module, entry in record.items()
        for qualname, digest in entry.objects.items()
    }


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [
        f"- {name} {old[name]}"
        if name not in new
        else f"+ {name} {new[name]}"
        if name not in old
        else f"! {name} {old[name]} -> {new[name]}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _read(path: Path) -> VerifiedSource:
    try:
        return VerifiedSource.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise _Usage(f"{path} cannot be read: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    """Write all of it or nothing."""
    path = Path(os.path.realpath(path))
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}-", delete=False
        ) as stream:
            temporary = stream.name
            stream.write(text)
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise _Usage(
            f"{path} cannot be written: {error.strerror}. Work in a checkout of the project, or name another "
            "file with --file"
        ) from error


# drift


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


def _drift(options: argparse.Namespace) -> int:
    pair = hosts.installed()
    patches = [patch for patch in registry.load() if fingerprints.leans_on(patch)]
    names = {patch.id: fingerprints.leans_on(patch) for patch in patches}
    modules = {name.partition(":")[0] for each in names.values() for name in each}
    given = _release(options, "", pair, modules)
    base = _release(options, "base_", pair, modules)
    recorded = None
    if not base.readers:  # nothing is given to compare with: what was verified is
        recorded = pair if pair in hosts.SUPPORTED else hosts.SUPPORTED[-1]
        base = _Release(_labels(recorded), {})

    findings: dict[str, list[Finding]] = {}
    refusals: dict[str, str] = {}
    for patch in patches:
        try:
            record = _record(patch, recorded, base, names[patch.id])
        except SourceMismatch as error:
            findings[patch.id], refusals[patch.id] = [], str(error)
            continue
        findings[patch.id] = fingerprints.compare(names[patch.id], record, given.read)
        differing = [each for each in findings[patch.id] if each.state is not ObjectState.VERIFIED]
        needed = [required for required in patch.requires if required in refusals]
        if differing:
            refusals[patch.id] = f"{len(differing)} of {len(names[patch.id])} objects differ"
        elif needed:
            refusals[patch.id] = f"needs {needed[0]}"
    differences = _differences(findings.values(), base, given)
    if options.json:
        rows = [
            {
                "id": patch.id,
                "refused": patch.id in refusals,
                "reason": refusals.get(patch.id, ""),
                "objects": [asdict(finding) for finding in findings[patch.id]],
            }
            for patch in patches
        ]
        content = {"base": str(base), "given": str(given), "patches": rows, "differences": differences}
        print(json.dumps(content, indent=2))
    else:
        print(f"from  {base}{', as verified' if recorded else ''}\nto    {given}\n")
        table = [
            (
                patch.id,
                "would be refused" if patch.id in refusals else "untouched",
                refusals.get(patch.id, ""),
            )
            for patch in patches
        ]
        print(report.text_table(("PATCH", "VERDICT", "REASON"), table))
        for text in differences.values():
            print(f"\n{text}", end="" if text.endswith("\n") else "\n")
    return DIFFERENT if refusals else SAME


def _release(options: argparse.Namespace, prefix: str, pair: HostPair, modules: Iterable[str]) -> _Release:
    """What the options name.

    Raises:
        _Usage, ArchiveError: it cannot be found or read.
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
            raise _Usage(
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
