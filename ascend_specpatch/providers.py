# SPDX-License-Identifier: Apache-2.0
"""Patches that other distributions add: the entry-point group ``ascend_specpatch.patches``.

An entry point names a :class:`~ascend_specpatch.registry.Patch` or a sequence of them. Where one is wrong,
the patches of its distribution are left out and vLLM gets the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ascend_specpatch.registry import Patch, Registry, RegistryError

GROUP = "ascend_specpatch.patches"


def extend(own: Iterable[Patch]) -> Registry:
    """A registry of the patches of ``own`` and those of other distributions.

    Raises:
        RegistryError: ``own`` is wrong by itself.
    """
    own = tuple(own)
    provided, problems = _provided()
    while True:
        patches = [*own, *(patch for patches in provided.values() for patch in patches)]
        try:
            return Registry(patches, problems)
        except RegistryError as error:
            brought = {patch.id: patch.provider for patch in patches}
            # What was listed last has the id that is there twice, and is named first in a circle.
            culprit = next((brought[name] for name in error.culprits if brought.get(name)), None)
            if culprit is None:
                raise
            problems.append(_problem(culprit, error))
            del provided[culprit]


def _provided() -> tuple[dict[str, tuple[Patch, ...]], list[str]]:
    """The patches by distribution, in an order that does not depend on the file system, and the problems."""
    provided: dict[str, tuple[Patch, ...]] = {}
    problems: dict[str, str] = {}
    for provider, points in sorted(_points().items()):
        for point in points:
            try:
                patches = _as_patches(point.load(), provider)
            # Foreign code: whatever it raises, vLLM is to go on.
            except (Exception, SystemExit) as error:
                problems.setdefault(provider, _problem(f"{provider} (entry point {point.name})", error))
            else:
                provided[provider] = provided.get(provider, ()) + patches
    for provider in problems:
        provided.pop(provider, None)
    return provided, list(problems.values())


def _points() -> dict[str, list[Any]]:
    """The entry points by distribution. Of one that is installed twice the first counts; one whose metadata
    cannot be read is somebody else's trouble."""
    import importlib_metadata

    found: dict[str, list[Any]] = {}
    for distribution in importlib_metadata.distributions():
        try:
            if GROUP not in (distribution.read_text("entry_points.txt") or ""):
                continue
            points = sorted(distribution.entry_points.select(group=GROUP), key=lambda point: point.name)
        except Exception:
            continue
        try:
            name = distribution.name
        except Exception:
            name = None
        if points:
            found.setdefault(name or points[0].module, points)
    return found


def _as_patches(value: Any, provider: str) -> tuple[Patch, ...]:
    patches = (value,) if isinstance(value, Patch) else tuple(value)
    for patch in patches:
        if not isinstance(patch, Patch):
            raise TypeError(
                f"an ascend_specpatch.registry.Patch or a sequence of them is wanted, not {patch!r}"
            )
        if patch.implementation is None:
            raise RegistryError(f"{patch.id}: implementation must name the module with apply(edit)", patch.id)
    return tuple(replace(patch, provider=provider) for patch in patches)


def _problem(provider: str, error: BaseException) -> str:
    said = str(error) if isinstance(error, RegistryError) else described(error)
    return f"the patches of {provider} are left out: {said}. Mend or uninstall that distribution"


def described(error: BaseException) -> str:
    """Type and message of an error, whose text may itself fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
