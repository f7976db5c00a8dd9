# SPDX-License-Identifier: Apache-2.0
"""``ascend-specpatch verify``: the installed hosts against the verified source, and ``--update``, which
records them as verified. Nothing is imported."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ascend_specpatch import fingerprints, hosts, report
from ascend_specpatch.console import complain, load_registry, say, say_json
from ascend_specpatch.fingerprints import (
    Finding,
    NoSource,
    ObjectState,
    Record,
    SourceMismatch,
    VerifiedSource,
    installed_source,
)
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Patch

SAME, DIFFERENT, BAD_USAGE = 0, 1, 2


class UsageError(ValueError):
    """Something the caller has to change; the message says what."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser(
        "verify", help="compare the installed hosts with the source that each patch was verified on"
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="record the installed source as verified: after every test has passed on it",
    )
    parser.add_argument(
        "--file",
        type=Path,
        help="the file of verified source to use, instead of those that come with the patches",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=verify)


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
    except (UsageError, SourceMismatch) as error:
        complain(str(error))
        return DIFFERENT if isinstance(error, SourceMismatch) else BAD_USAGE


def _patches_for(pair: HostPair) -> list[Patch]:
    """The patches for ``pair`` that declare what they lean on.

    Raises:
        UsageError: there is none.
    """
    found = [
        patch for patch in (p.on(pair) for p in load_registry() if p.is_needed_on(pair)) if declares(patch)
    ]
    if not found:
        raise UsageError(
            f"found {pair}, and no patch is for it: install {hosts.supported_text()}. A new pair begins with "
            "a line in SUPPORTED of ascend_specpatch/hosts.py"
        )
    return found


def declares(patch: Patch) -> bool:
    """Whether a patch declares what it leans on, if wrongly."""
    try:
        return bool(fingerprints.leans_on(patch))
    except SourceMismatch:
        return True


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
        say_json({"pair": str(pair), "verified": same, "patches": rows})
    else:
        table = [
            (patch.id, finding.name, _state(finding))
            for patch in patches
            for finding in findings.get(patch.id, ())
        ]
        table += [(patch_id, "-", problem) for patch_id, problem in problems.items()]
        say(report.text_table(("PATCH", "OBJECT", "STATE"), table))
        count = sum(finding.state is ObjectState.VERIFIED for finding in every)
        say(f"\n{pair}: {count} of {len(every)} objects of {len(patches)} patches are as verified")
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
    after: list[VerifiedSource] = []
    for path, its in by_path.items():
        before = _read(Path(path)) if os.path.lexists(path) else VerifiedSource(path, {})
        names = [name for patch in its for name in fingerprints.leans_on(patch)]
        try:
            record = fingerprints.record_of(names, installed_source)
        except NoSource as error:
            raise SourceMismatch(f"{path} stays as it is: {error}") from error
        old = before.pairs.get(str(pair), {})
        changes[path] = _changes(by_name(old), by_name(record))
        if old != record:
            after.append(VerifiedSource(path, {**before.pairs, str(pair): record}))
    for verified in after:  # once nothing was found to be wrong in any
        _write(Path(verified.path), verified.text())
    if options.json:
        say_json({"pair": str(pair), "changes": changes})
    else:
        for path, lines in changes.items():
            say("\n".join([f"{path}: {pair}", *(lines or ["nothing changed"])]))
    return SAME


def by_name(record: Record) -> dict[str, str]:
    """The digest of each ``module:qualname`` of a record."""
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
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


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
        raise UsageError(
            f"{path} cannot be written: {error.strerror}. Work in a checkout of the project, or name another "
            "file with --file"
        ) from error
