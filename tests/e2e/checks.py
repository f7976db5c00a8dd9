# SPDX-License-Identifier: Apache-2.0
"""The comparisons that the end-to-end tests are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import host, prompts
from .cases import Case, Draft, Outcome
from .harness import Harness
from .oracle import Oracle

if TYPE_CHECKING:
    from torch import Tensor

    from .reference import Speculation


@dataclass
class Check:
    harness: Harness
    oracle: Oracle

    def runs(self, case: Case) -> Outcome:
        """The case ends without an error."""
        outcome = self.harness.run(case)
        assert outcome.error is None, f"{case}\n{outcome.error}\n{outcome.last_lines()}"
        return outcome

    def same_text(self, case: Case) -> Outcome:
        """Token by token what plain decoding and transformers give."""
        outcome = self.runs(case)
        plain = self.runs(case.plain())
        expected = self.oracle.text(case)
        for request, (ours, hosts, reference) in enumerate(
            zip(outcome.tokens, plain.tokens, expected, strict=True)
        ):
            assert hosts == reference, (
                f"plain decoding of {case.model} is not transformers' (request {request})"
            )
            assert ours == reference, f"request {request} of {case}: {_first_difference(ours, reference)}"
        return outcome

    def all_accepted(self, case: Case) -> Outcome:
        """Same text, and every draft verified was accepted."""
        outcome = self.same_text(case)
        expected = self.oracle.speculation(case)
        assert expected.accepted == expected.drafted > 0, "the case's draft is not its target's equal"
        assert outcome.accepted == outcome.drafted > 0, "\n".join(self.wrong_drafts(case)[:5])
        return outcome

    def as_reference(self, case: Case) -> Outcome:
        """Same text, the reference's counts by position, and the reference's drafts one by one."""
        outcome = self.same_text(case)
        wrong = self.wrong_drafts(case)
        assert not wrong, f"{len(wrong)} drafts of {case} differ, first:\n" + "\n".join(wrong[:5])
        assert counts(outcome) == counts(self.oracle.speculation(case))
        compared = self._logits(case)
        if compared is not None:
            found, expected = compared
            difference = float((found - expected).abs().max())
            most = host.precision(case) * max(1.0, float(expected.abs().max()))
            assert difference <= most, f"logits of {case} differ by {difference}"
        return outcome

    def largest_logit_difference(self, case: Case) -> float | None:
        """Between the drafter's passes and the reference's after the same tokens; None where replayed graphs
        hide the logits."""
        compared = self._logits(case)
        return None if compared is None else float((compared[0] - compared[1]).abs().max())

    def _logits(self, case: Case) -> tuple[Tensor, Tensor] | None:
        """Those of the drafter and those of the reference."""
        import torch

        outcome = self.runs(case)
        drafts = [draft for draft in self.compared(case) if draft.logits]
        if not drafts:
            return None
        expected = self.oracle.logits(case, outcome.tokens, drafts)
        found = torch.frombuffer(bytearray(b"".join(draft.logits for draft in drafts)), dtype=torch.float32)
        found = found.view(expected.shape)
        can_draft = expected.isfinite()
        assert torch.equal(can_draft, found.isfinite()), f"{case} drafts from other tokens than the reference"
        verified = [len(self.oracle.speculation(case).drafts[draft.request, draft.known]) for draft in drafts]
        can_draft &= (torch.arange(case.k) < torch.tensor(verified)[:, None])[..., None]
        return found[can_draft], expected[can_draft]

    def wrong(self, case: Case) -> list[Draft]:
        """The proposals of a case that are not the reference's.

        Compared wherever the reference stood as well: an engine that accepted something else stands elsewhere
        afterwards, and the first difference says why.
        """
        expected = self.oracle.speculation(case).drafts

        def differs(draft: Draft) -> bool:
            verified = expected[draft.request, draft.known]
            return draft.tokens[: len(verified)] != verified

        return [draft for draft in self.compared(case) if differs(draft)]

    def margins(self, case: Case) -> list[float]:
        """Of each request whose text is not plain decoding's: how far apart the reference sees the two tokens
        where the texts part, in parts of its largest logit there."""
        prompt = prompts.tokens(case.prompts)
        found = []
        for request, (ours, plain) in enumerate(
            zip(self.runs(case).tokens, self.runs(case.plain()).tokens, strict=True)
        ):
            if ours != plain:
                place = next(i for i, (a, b) in enumerate(zip(ours, plain, strict=True)) if a != b)
                logits = self.oracle.next_logits(case, [*prompt[request], *plain[:place]])
                margin = logits[ours[place]] - logits[plain[place]]
                found.append(float(margin.abs() / logits.abs().max()))
        return found

    def compared(self, case: Case) -> list[Draft]:
        """The proposals of a case where the reference drafts too."""
        expected = self.oracle.speculation(case).drafts
        found = [draft for draft in self.runs(case).drafts if (draft.request, draft.known) in expected]
        assert found, "no draft was recorded where the reference drafts"
        return found

    def wrong_drafts(self, case: Case) -> list[str]:
        """The same in words."""
        expected = self.oracle.speculation(case).drafts
        lengths = [len(prompt) for prompt in prompts.tokens(case.prompts)]
        return [
            f"request {draft.request} (prompt of {lengths[draft.request]}) with {draft.known} tokens known: "
            f"drafts {draft.tokens}, reference {expected[draft.request, draft.known]}"
            for draft in self.wrong(case)
        ]


def counts(source: Outcome | Speculation) -> dict[str, object]:
    return {
        "accepted": source.accepted,
        "drafted": source.drafted,
        "by position": source.accepted_at,
        "steps": source.num_drafts,
    }


def host_alone(case: Case) -> Case:
    """The same case on the unpatched hosts."""
    return replace(case, env={**case.env, "ASCEND_SPECPATCH": "0"})


def _first_difference(ours: list[int], reference: list[int]) -> str:
    index = next(
        (i for i, (a, b) in enumerate(zip(ours, reference, strict=False)) if a != b),
        min(len(ours), len(reference)),
    )
    return f"first difference at token {index}: {ours[index : index + 4]} and {reference[index : index + 4]}"
