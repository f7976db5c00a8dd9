# SPDX-License-Identifier: Apache-2.0
"""What happens to requests while others are served: they join, end, leave, and ask for different things.

All of it in one run of each engine; what a request gets does not depend on who else is there, so each is
compared with its plain run: without speculation and without asynchronous scheduling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.e2e import host, prompts, tokenizer
from tests.e2e.cases import Case, Outcome
from tests.e2e.checks import Check
from tests.e2e.traffic import Arrival

PROMPTS = prompts.tokens("mixed")
ENGINE = {"max_model_len": 280, "max_num_seqs": 8, "num_gpu_blocks_override": 24}
PENALTIES = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.5}
# The first tokens of a stop-token test: with three drafts a step, some of them end inside a draft.
STOPS = range(4, 12)


@dataclass(frozen=True)
class Life:
    """The outcome of an engine and that of its plain one, request by request."""

    case: Case
    names: tuple[str, ...]
    ours: Outcome
    plain: Outcome

    def pair(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        number = self.names.index(name)
        return self.ours.answers[number], self.plain.answers[number]

    def same(self, name: str) -> dict[str, Any]:
        """The only output of a request, which is that of the plain engine."""
        ours, plain = (answer["outputs"][0] for answer in self.pair(name))
        fields = ("tokens", "finish", "stop", "text")
        assert {f: ours[f] for f in fields} == {f: plain[f] for f in fields}, name
        return ours


def _arrivals(text: list[int]) -> dict[str, Arrival]:
    """By name. ``text``: what the model says to the second prompt."""
    short, middle, long, other, longest, repetitive = PROMPTS
    asked: dict[str, Arrival] = {
        "alone at first": Arrival(short),
        "joins": Arrival(middle, step=3),
        "leaves": Arrival(long, step=3, abort_after=5),
        "leaves before it begins": Arrival(other, step=4, abort_after=0),
        **{f"ends after {n}": Arrival(other, {"max_tokens": n}, step=4) for n in (1, 2, 3, 5)},
        **{f"stops at {n}": Arrival(middle, {"stop_token_ids": [text[n]]}, step=5 + n) for n in STOPS},
        "is as long as the model": Arrival(longest, step=8),
        "goes round to the end": Arrival(longest[:200], {"max_tokens": 100}, step=8),
        "wants logprobs": Arrival(other, {"logprobs": 2}, step=9),
        "wants logprobs of its prompt": Arrival(repetitive, {"prompt_logprobs": 2}, step=9),
        "is penalised": Arrival(repetitive, {**PENALTIES, "max_tokens": 40}, step=10),
        "may say few things": Arrival(other, {"allowed_token_ids": list(range(40, 60))}, step=11),
        "samples one token": Arrival(middle, {"temperature": 1.0, "top_k": 1}, step=12),
        "samples": Arrival(middle, {"temperature": 1.0, "seed": 5}, step=12),
        "samples three times": Arrival(middle, {"temperature": 1.0, "seed": 5, "n": 3}, step=16),
        "comes last": Arrival(short, step=40),
    }
    if host.takes_min_tokens():
        asked["stops late"] = Arrival(middle, {"stop_token_ids": text[4:12], "min_tokens": 9}, step=13)
    return asked


def _spoken(check: Check, model: str) -> list[int]:
    """What a model says to the second prompt."""
    engine = {**ENGINE, "async_scheduling": False}
    alone = Case(model, arrivals=[Arrival(PROMPTS[1]).to_dict()], engine=engine)
    tokens: list[int] = check.runs(alone).answers[0]["outputs"][0]["tokens"]
    return tokens


def _life(check: Check, case: Case) -> Life:
    arrivals = _arrivals(_spoken(check, case.model))
    rows = [arrival.to_dict() for arrival in arrivals.values()]
    engine = {**ENGINE, "async_scheduling": False}
    plain = Case(case.model, arrivals=[{**row, "abort_after": None} for row in rows], engine=engine)
    ours = replace(case, arrivals=rows, engine={**ENGINE, **case.engine})
    return Life(ours, tuple(arrivals), check.runs(ours), check.runs(plain))


METHODS = {
    "draft_model": Case("pred", "draft_model", "pred_draft"),
    "draft_model, all accepted": Case("llama", "draft_model", "llama"),
    "eagle": Case("pred", "eagle", "pred_eagle"),
}
ENGINES = {
    f"{name}, {'' if on else 'no '}async": replace(case, engine={"async_scheduling": on})
    for name, case in METHODS.items()
    for on in (True, False)
}
del ENGINES["draft_model, all accepted, no async"]  # of the others' kind, and half a minute
ENGINES["ngram"] = Case("cyc", "ngram", spec={"prompt_lookup_max": 3, "prompt_lookup_min": 1})
ENGINES["mtp"] = Case("mimo_hi", "mtp")


@pytest.fixture(params=ENGINES, scope="module")
def life(request: pytest.FixtureRequest, check: Check) -> Life:
    return _life(check, ENGINES[request.param])


def test_requests_join_end_and_leave(life: Life) -> None:
    for name in ("alone at first", "joins", "comes last"):
        assert len(life.same(name)["tokens"]) == 24
    for length in (1, 2, 3, 5):
        assert len(life.same(f"ends after {length}")["tokens"]) == length


def test_what_a_client_got_before_it_left_is_right(life: Life) -> None:
    ours, plain = life.pair("leaves")
    tokens = ours["outputs"][0]["tokens"]
    assert ours["aborted"]
    assert 0 < len(tokens) < 24
    assert tokens == plain["outputs"][0]["tokens"][: len(tokens)]


def test_nothing_is_held_at_the_end(life: Life) -> None:
    steps = life.ours.left["steps"]
    assert life.ours.left == {
        "missing_blocks": 0, "requests": 0, "block_tables": 0, "in_runner": 0, "steps": steps,
    }  # fmt: skip


def test_stop_tokens_inside_a_draft_end_the_text(life: Life) -> None:
    text = life.plain.answers[life.names.index("joins")]["outputs"][0]["tokens"]
    for place in STOPS:
        output = life.same(f"stops at {place}")
        assert output["stop"] == text[place]
        assert output["tokens"] == text[: text.index(text[place]) + 1]


@pytest.mark.skipif(not host.takes_min_tokens(), reason="vLLM refuses min_tokens with drafts")
def test_no_text_stops_before_its_least_length(life: Life) -> None:
    assert len(life.same("stops late")["tokens"]) >= 9


def test_the_longest_text_ends_with_the_model(life: Life) -> None:
    output = life.same("is as long as the model")
    assert len(output["tokens"]) == 280 - 260
    assert output["finish"] == "length"
    assert len(life.same("goes round to the end")["tokens"]) == 280 - 200


def test_logprobs_are_those_of_plain_decoding(life: Life) -> None:
    life.same("wants logprobs")
    ours, plain = life.pair("wants logprobs")
    assert len(ours["outputs"][0]["logprobs"]) == 24
    for row, right in zip(ours["outputs"][0]["logprobs"], plain["outputs"][0]["logprobs"], strict=True):
        assert row == pytest.approx(right, abs=1e-4)


def test_prompt_logprobs_are_those_of_plain_decoding(life: Life) -> None:
    life.same("wants logprobs of its prompt")
    ours, plain = life.pair("wants logprobs of its prompt")
    assert len(ours["prompt_logprobs"]) == 45
    for row, right in zip(ours["prompt_logprobs"][1:], plain["prompt_logprobs"][1:], strict=True):
        assert row == pytest.approx(right, abs=1e-4)


def test_penalties_count_accepted_tokens_and_drafts(life: Life) -> None:
    assert len(life.same("is penalised")["tokens"]) == 40


def test_tokens_that_are_not_allowed_are_not_accepted(life: Life) -> None:
    assert set(life.same("may say few things")["tokens"]) <= set(range(40, 60))


def test_sampling_one_token_is_greedy(life: Life) -> None:
    assert life.same("samples one token")["tokens"] == life.same("joins")["tokens"]


def test_a_seed_gives_one_text_whoever_else_is_there(life: Life) -> None:
    ours, _ = life.pair("samples")
    three, _ = life.pair("samples three times")
    texts = [output["tokens"] for output in three["outputs"]]
    assert [len(text) for text in texts] == [24, 24, 24]
    assert texts[0] == ours["outputs"][0]["tokens"]  # vLLM gives the first answer the seed, the next seed + 1
    assert len({tuple(text) for text in texts}) == 3


@pytest.mark.parametrize("method", ["draft_model", "eagle"])
def test_a_request_that_is_left_out_of_a_step_comes_back(check: Check, method: str) -> None:
    """Under asynchronous scheduling a request waits for a step where its drafts, if all are accepted, reach
    ``max_model_len``. It has no drafts on the device when it goes on."""
    longest = 2 * PROMPTS[4]
    rows = [
        Arrival(longest[start : start + length], {"max_tokens": 60}, step=start).to_dict()
        for start, length in enumerate(range(272, 296, 2))
    ]
    engine = {"max_model_len": 300, "num_gpu_blocks_override": 40}
    case = replace(METHODS[method], arrivals=rows, engine={**engine, "async_scheduling": True})
    plain = Case(case.model, arrivals=rows, engine={**engine, "async_scheduling": False})
    texts = [[answer["outputs"] for answer in check.runs(one).answers] for one in (case, plain)]
    assert texts[0] == texts[1]


# ---- what needs text -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tokenizer.write(tmp_path_factory.mktemp("tokenizer")))


GRAMMARS: dict[str, dict[str, Any]] = {
    "regex": {"regex": r"[0-9]{3}-[a-z]{4,9}!"},
    "choice": {"choice": ["yes indeed", "no indeed", "perhaps not"]},
    "json": {
        "json": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    },
}


TEXT_STOPS = (3, 5, 6, 8)


@pytest.fixture(params=[name for name in ENGINES if "all accepted" not in name], scope="module")
def text(request: pytest.FixtureRequest, check: Check, words: str) -> Life:
    case = ENGINES[request.param]
    said = [tokenizer.tokens()[token] for token in _spoken(check, case.model)]
    asked: dict[str, dict[str, Any]] = {
        "free": {},
        **{f"stops at {n}": {"stop": ["".join(said[n : n + 2])]} for n in TEXT_STOPS},
        "has bad words": {"bad_words": [said[2], said[5]]},
        **{name: {"structured_outputs": grammar, "ignore_eos": False} for name, grammar in GRAMMARS.items()},
        "free too": {},
    }
    rows = [
        Arrival(PROMPTS[1], {"detokenize": True, **sampling}, step=2 * number).to_dict()
        for number, sampling in enumerate(asked.values())
    ]
    engine = {**ENGINE, "skip_tokenizer_init": False, "tokenizer": words}
    plain = Case(case.model, arrivals=rows, engine={**engine, "async_scheduling": False})
    ours = replace(case, arrivals=rows, engine={**engine, **case.engine})
    return Life(ours, tuple(asked), check.runs(ours), check.runs(plain))


def test_stop_strings_inside_a_draft_end_the_text(text: Life) -> None:
    whole = text.same("free")["text"]
    for n in TEXT_STOPS:
        ours, plain = (answer["outputs"][0] for answer in text.pair(f"stops at {n}"))
        assert ours["finish"] == plain["finish"] == "stop"
        assert ours["stop"] == plain["stop"]
        assert ours["text"] == plain["text"] == whole[: whole.index(ours["stop"])]
        # As with vLLM: the tokens are those of whole steps.
        assert ours["tokens"][: len(plain["tokens"])] == plain["tokens"]


def test_bad_words_are_not_accepted(text: Life) -> None:
    output, free = text.same("has bad words"), text.same("free")
    assert not {free["tokens"][2], free["tokens"][5]} & set(output["tokens"])


def test_grammars_hold_and_others_are_free(text: Life) -> None:
    assert text.same("free") == text.same("free too")
    assert re.fullmatch(GRAMMARS["regex"]["regex"], text.same("regex")["text"])
    assert text.same("choice")["text"] in GRAMMARS["choice"]["choice"]
    text.same("json")
    assert text.ours.left["missing_blocks"] == 0


# ---- what is refused -------------------------------------------------------------------------------------


REFUSED: list[dict[str, Any]] = [{"min_p": 0.1, "temperature": 1}]
if not host.takes_min_tokens():
    REFUSED.append({"min_tokens": 4})


@pytest.mark.parametrize("asked", REFUSED)
def test_what_vllm_does_not_support_with_drafts_is_refused(check: Check, asked: dict[str, Any]) -> None:
    outcome = check.harness.run(replace(METHODS["eagle"], prompts="one", sampling=asked))
    assert outcome.error is not None
    assert "not yet supported with speculative decoding" in outcome.error
