# SPDX-License-Identifier: Apache-2.0
"""What a correct engine answers to a case: the reference, computed once for each set of inputs.

Answers are kept in a directory under a digest of everything they depend on: the models' stamps, the prompts,
the reference itself. A run with unchanged inputs imports neither torch nor transformers for them.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.tiny_models import STAMP

from . import prompts
from .cases import Case, Draft

if TYPE_CHECKING:
    import torch

    from .reference import Drafter, Speculation, Target

_SOURCES = [Path(__file__).with_name(name) for name in ("reference.py", "prompts.py", "oracle.py")]


class Oracle:
    def __init__(self, models: Path, answers: Path) -> None:
        self.models, self.answers = models, answers
        answers.mkdir(parents=True, exist_ok=True)
        self._targets: dict[str, Target] = {}
        self._drafters: dict[tuple[Any, ...], Drafter] = {}
        self._speculations: dict[Path, Speculation] = {}

    def text(self, case: Case) -> list[list[int]]:
        """Greedy tokens of each prompt, cut at ``max_model_len``."""
        path = self._path("text", case, case.max_model_len)
        if not path.exists():
            _write(path, json.dumps(self._text(case)))
        answer: list[list[int]] = json.loads(path.read_text())
        return answer

    def _text(self, case: Case) -> list[list[int]]:
        return [
            self._target(case.speaker(request)).greedy(
                prompt, min(case.max_tokens, case.max_model_len - len(prompt))
            )
            for request, prompt in enumerate(prompts.tokens(case.prompts))
        ]

    def next_logits(self, case: Case, tokens: list[int]) -> torch.Tensor:
        """float32 [vocabulary]: what the target says after ``tokens``."""
        return self._target(case.model).next_logits(tuple(tokens))

    def speculation(self, case: Case) -> Speculation:
        """Counts and drafts of a correct drafter of the case's method."""
        from .reference import Speculation, speculate

        path = self._path("speculation", case, *self._drafting(case), case.k, case.max_model_len)
        if path not in self._speculations and path.exists():
            self._speculations[path] = Speculation.from_json(path.read_text())
        if path not in self._speculations:
            requests = [
                (self._target(case.speaker(request)), self._drafter(case, request), prompt)
                for request, prompt in enumerate(prompts.tokens(case.prompts))
            ]
            found = speculate(requests, case.max_tokens, case.k, case.max_model_len)
            _write(path, found.to_json())
            self._speculations[path] = found
        return self._speculations[path]

    def logits(self, case: Case, tokens: list[list[int]], drafts: list[Draft]) -> torch.Tensor:
        """float32 [len(drafts), k, vocabulary]: what a correct drafter's passes say at the places of
        ``drafts``, in the text that an engine made (``tokens`` after each prompt), each pass after the tokens
        that the engine drafted before it."""
        import torch

        places = [(draft.request, draft.known, draft.tokens) for draft in drafts]
        path = self._path("logits", case, *self._drafting(case), tokens, places)
        path = path.with_suffix(".pt")
        if not path.exists():
            texts = [[*p, *t] for p, t in zip(prompts.tokens(case.prompts), tokens, strict=True)]
            found = [
                self._drafter(case, request).logits(texts[request], known, ids)
                for request, known, ids in places
            ]
            torch.save(torch.stack(found), path)
        answer: torch.Tensor = torch.load(path)
        return answer

    def _target(self, name: str) -> Target:
        from .reference import Target

        if name not in self._targets:
            self._targets[name] = Target(self.models / name)
        return self._targets[name]

    def _drafter(self, case: Case, request: int) -> Drafter:
        """One for all requests that are drafted for alike: it remembers its passes."""
        speaker = case.speaker(request)
        key = *self._drafting(case), speaker
        if key not in self._drafters:
            self._drafters[key] = self._new_drafter(case, self._target(speaker))
        return self._drafters[key]

    def _new_drafter(self, case: Case, speaker: Target) -> Drafter:
        from . import reference

        target = self._target(case.model)
        if case.method == "mtp":
            return reference.Mtp(target, speaker)
        assert case.draft is not None
        directory = self.models / case.draft
        if case.method == "draft_model":
            return (reference.ParallelDraftModel if case.in_parallel else reference.DraftModel)(directory)
        eagle3 = reference.ParallelEagle3 if case.in_parallel else reference.Eagle3
        return {"eagle": reference.Eagle, "eagle3": eagle3}[str(case.method)](target, speaker, directory)

    def _drafting(self, case: Case) -> tuple[Any, ...]:
        return case.model, case.method, case.draft, case.in_parallel

    def _path(self, kind: str, case: Case, *inputs: Any) -> Path:
        asked = [kind, case.prompts, case.max_tokens, case.model, case.adapters, *inputs]
        digest = hashlib.sha256(json.dumps(asked).encode())
        for name in filter(None, (case.model, case.draft, *case.adapters)):
            digest.update((self.models / name / STAMP).read_bytes())
        for source in _SOURCES:
            digest.update(source.read_bytes())
        return self.answers / f"{kind}-{digest.hexdigest()[:24]}.json"


def _write(path: Path, text: str) -> None:
    """Whole or not at all: another run may be reading."""
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(text)
    scratch.replace(path)
