# SPDX-License-Identifier: Apache-2.0
"""What is drafted and accepted by the hosts alone, with the patches, and by the reference drafter.

``make acceptance`` runs every method of ``tests/e2e/matrix.py`` in every mode with 1 to 5 drafts a step on
the emulated NPU, and writes the pair's tables in ``docs/acceptance.md`` and ``docs/hosts.md``. It takes about
20 minutes on two cores; ``--resume`` goes on where an interrupted run ended. On another pair than the first
(``make acceptance HOST=0.18.0``) the hosts alone draft three tokens a step only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

_ROOT = Path(__file__).parents[1]
sys.path.append(str(_ROOT))

from ascend_specpatch.hosts import SUPPORTED  # noqa: E402
from tests import tiny_models  # noqa: E402
from tests.e2e import host, matrix  # noqa: E402
from tests.e2e.cases import Case  # noqa: E402
from tests.e2e.checks import Check, host_alone  # noqa: E402
from tests.e2e.harness import Harness  # noqa: E402
from tests.e2e.oracle import Oracle  # noqa: E402

_BUILD = _ROOT / "build" / "acceptance"
_PAGE = _ROOT / "docs" / "acceptance.md"
_HOSTS_PAGE = _ROOT / "docs" / "hosts.md"
_IS_FIRST_PAIR = SUPPORTED[0] == host.PAIR
_SHOWN_OF_HOSTS = 3  # drafts a step
_LOW = "bfloat16"


@dataclass(frozen=True)
class Row:
    """One run of one combination."""

    method: str
    mode: str
    k: int
    who: str  # "hosts" or "ours"
    dtype: str
    error: str = ""  # the last line of what ended the run
    accepted: int = 0
    drafted: int = 0
    expected_accepted: int = 0  # of the reference
    expected_drafted: int = 0
    wrong: int = 0  # draft ids that are not the reference's
    compared: int = 0
    logits: float | None = None  # the largest difference; None where replayed graphs hide them
    differing: int = 0  # requests whose text is not plain decoding's
    margin: float = 0.0  # the largest there, see Check.margins

    @property
    def key(self) -> tuple[object, ...]:
        return self.method, self.mode, self.k, self.who, self.dtype


def _measure(check: Check, row: Row, case: Case) -> Row:
    outcome = check.harness.run(case)
    if outcome.error is not None:
        return replace(row, error=outcome.error.splitlines()[-1])
    margins = check.margins(case)
    found = replace(
        row,
        accepted=outcome.accepted,
        drafted=outcome.drafted,
        differing=len(margins),
        margin=max(margins, default=0.0),
    )
    if row.dtype == _LOW:
        return found
    expected = check.oracle.speculation(case)
    drafts = check.compared(case)
    wrong = [
        a != b
        for draft in drafts
        for a, b in zip(draft.tokens, expected.drafts[draft.request, draft.known], strict=False)
    ]
    return replace(
        found,
        expected_accepted=expected.accepted,
        expected_drafted=expected.drafted,
        wrong=sum(wrong),
        compared=len(wrong),
        logits=check.largest_logit_difference(case),
    )


def _cases() -> list[tuple[str, str, int, Case]]:
    equals = [(f"draft_model, {name}", "padded", case.k, case) for name, case in matrix.EQUALS.items()]
    return [*equals, *matrix.cases()]


def _rows() -> list[tuple[Row, Case]]:
    """Everything that is run, what tells most first: an interrupted run has a page too."""
    ours, hosts = [], []
    for method, mode, k, case in _cases():
        if host.PAIR in SUPPORTED:
            ours.append((Row(method, mode, k, "ours", "float32"), case))
        if host.drafts_alone(method) and (_IS_FIRST_PAIR or k == _SHOWN_OF_HOSTS):
            hosts.append((Row(method, mode, k, "hosts", "float32"), host_alone(case)))
    low = [
        (replace(row, dtype=_LOW), replace(case, engine={**case.engine, "dtype": _LOW}))
        for row, case in ours
        if row.method in matrix.METHODS and (row.mode, row.k) == ("padded", 3)
    ]
    rows = [*ours, *low, *hosts]
    return sorted(rows, key=lambda found: found[0].mode != "padded")  # stable


def _run(rows: list[tuple[Row, Case]], resume: bool) -> list[Row]:
    _BUILD.mkdir(parents=True, exist_ok=True)
    journal = _BUILD / f"rows-{host.PAIR.vllm}.jsonl"
    earlier = journal.read_text().splitlines() if resume and journal.exists() else []
    done = [Row(**json.loads(line)) for line in earlier]
    known = {row.key for row in done}
    models = tiny_models.by_release(_BUILD / "models")
    tiny_models.write(models)
    with tempfile.TemporaryDirectory() as scratch, journal.open("a" if resume else "w") as file:
        check = Check(Harness(models, Path(scratch), _BUILD / "vllm"), Oracle(models, _BUILD / "oracle"))
        try:
            for number, (row, case) in enumerate(rows, start=1):
                if row.key in known:
                    continue
                done.append(_measure(check, row, case))
                print(json.dumps(asdict(done[-1])), file=file, flush=True)
                print(f"{number}/{len(rows)} {done[-1]}", flush=True)
        finally:
            check.harness.close()
    return done


_COLUMNS = ("method", "k", "reference", "hosts", "wrong ids", "logits", "patched", "wrong ids", "logits")


def _cells(row: Row | None) -> tuple[str, str, str]:
    if row is None or row.error:
        return "" if row is None else "fails", "", ""
    logits = "" if row.logits is None else f"{row.logits:.1e}"
    return f"{row.accepted}/{row.drafted}", f"{row.wrong} of {row.compared}", logits


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _acceptance(rows: list[Row]) -> str:
    """Of the installed pair: the summary, a line for each combination, and bfloat16."""
    order = [*matrix.MODES], [*matrix.METHODS]
    rows = sorted(
        (row for row in rows if row.method in matrix.METHODS),
        key=lambda row: (order[0].index(row.mode), order[1].index(row.method), row.k),
    )
    exact = [row for row in rows if row.dtype == "float32"]
    hosts = {(row.method, row.mode, row.k): row for row in exact if row.who == "hosts"}
    ours = [row for row in exact if row.who == "ours"]
    low = [row for row in rows if row.dtype == _LOW]
    tables = _with_hosts(ours, hosts) if _IS_FIRST_PAIR else _by_drafts(ours)
    return "\n".join(
        [*_summary(ours, list(hosts.values())), "", *tables, *(_low_precision(low) if low else [])]
    )


def _with_hosts(ours: list[Row], hosts: dict[tuple[str, str, int], Row]) -> list[str]:
    lines = []
    for mode in dict.fromkeys(row.mode for row in ours):
        lines += [f"### {mode}", "", _line(_COLUMNS), _line("---" for _ in _COLUMNS)]
        for row in ours:
            if row.mode == mode and not row.error:
                reference = f"{row.expected_accepted}/{row.expected_drafted}"
                alone = _cells(hosts.get((row.method, mode, row.k)))
                lines.append(_line((row.method, row.k, reference, *alone, *_cells(row))))
        lines.append("")
    return lines


def _by_drafts(ours: list[Row]) -> list[str]:
    """A line for each method and mode, with a column for each number of drafts."""
    columns = ("mode", "method", *(f"k = {k}" for k in matrix.K), "logits")
    lines = [_line(columns), _line("---" for _ in columns)]
    for mode, method in dict.fromkeys((row.mode, row.method) for row in ours):
        found = {row.k: row for row in ours if (row.mode, row.method) == (mode, method)}
        logits = [row.logits for row in found.values() if row.logits is not None]
        largest = f"{max(logits):.1e}" if logits else ""
        lines.append(_line((mode, method, *(_against(found.get(k)) for k in matrix.K), largest)))
    return [*lines, ""]


def _against(row: Row | None) -> str:
    """accepted/drafted, and what of it is not the reference's."""
    if row is None or row.error:
        return _cells(row)[0]
    counts, expected = (row.accepted, row.drafted), (row.expected_accepted, row.expected_drafted)
    parts = [f"{row.accepted}/{row.drafted}"]
    if counts != expected:
        parts.append(f"reference {row.expected_accepted}/{row.expected_drafted}")
    if row.wrong:
        parts.append(f"{row.wrong} of {row.compared} wrong")
    return ", ".join(parts)


def _summary(ours: list[Row], hosts: list[Row]) -> list[str]:
    def wrong(rows: list[Row]) -> str:
        drafting = [row for row in rows if not row.error]
        ids, compared = sum(row.wrong for row in drafting), sum(row.compared for row in drafting)
        return f"in {len(drafting)} runs {ids} of {compared} draft ids are wrong"

    def text(rows: list[Row]) -> int:
        return sum(row.differing for row in rows)

    failed = sum(row.error != "" for row in hosts)
    largest = max((row.logits for row in ours if row.logits is not None), default=0.0)
    return [
        f"- With the patches {wrong(ours)}; logits differ by {largest:.1e} at most.",
        f"- With the hosts alone {wrong(hosts)}; {failed} runs end with an error.",
        f"- Requests with other text than plain decoding: {text(ours)} with, {text(hosts)} without patches.",
    ]


def _low_precision(rows: list[Row]) -> list[str]:
    columns = ("method", "k", "accepted/drafted", "requests with other text", "largest margin")
    return [
        "### bfloat16",
        "",
        "Batches of other shapes round differently, so text may differ from plain decoding's where two",
        "logits are nearly equal. The margin is what lies between the two tokens there in float32, in parts",
        "of the largest logit; neighbouring bfloat16 numbers are 1/256 to 1/128 (0.004 to 0.008) of their",
        "size apart.",
        "",
        _line(columns),
        _line("---" for _ in columns),
        *(
            _line(
                (
                    row.method,
                    row.k,
                    f"{row.accepted}/{row.drafted}",
                    f"{row.differing} of 6",
                    f"{row.margin:.4f}" if row.differing else "",
                )
            )
            for row in rows
        ),
        "",
    ]


_HOSTS_COLUMNS = ("method", "mode", "reference", "hosts alone", "wrong ids", "patched", "wrong ids")


def _table_of_hosts(rows: list[Row]) -> str:
    """Of the installed pair: each method and mode, hosts alone and patched, and why runs failed."""
    shown = {row.key: row for row in rows if row.k == _SHOWN_OF_HOSTS}
    lines = [_line(_HOSTS_COLUMNS), _line("---" for _ in _HOSTS_COLUMNS)]
    errors: dict[str, list[str]] = {}
    for method, mode, k, _ in _cases():
        both = [shown.get((method, mode, k, who, "float32")) for who in ("hosts", "ours")]
        if both == [None, None]:
            continue
        for row in both:
            if row is not None and row.error:
                where = f"{method}, {mode}, {'alone' if row.who == 'hosts' else 'patched'}"
                errors.setdefault(row.error, []).append(where)
        expected = {
            f"{row.expected_accepted}/{row.expected_drafted}" for row in both if row and not row.error
        }
        lines.append(
            _line((method, mode, *(expected or {""}), *(c for row in both for c in _cells(row)[:2])))
        )
    return "\n".join([*lines, "", *(f"- {'; '.join(places)}: `{error}`" for error, places in errors.items())])


def _write(page: Path, text: str) -> None:
    """Put what was found with the pair into a page, between the comments that name the pair."""
    begin, end = (f"<!-- {what} of {host.PAIR} -->" for what in ("table", "end"))
    before, found, rest = page.read_text().partition(begin)
    assert found, f"{page.name} has no place for {host.PAIR}: add the lines {begin} and {end}"
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run has measured")
    parser.add_argument("--page-only", action="store_true", help="write the page from what has been measured")
    parser.add_argument("--who", choices=("ours", "hosts"), help="run these rows only")
    arguments = parser.parse_args()
    rows = [] if arguments.page_only else [row for row in _rows() if arguments.who in (None, row[0].who)]
    found = _run(rows, arguments.resume or arguments.page_only)
    _write(_PAGE, _acceptance(found))
    _write(_HOSTS_PAGE, _table_of_hosts(found))
    print(f"wrote the tables of {host.PAIR} in docs/{_PAGE.name} and docs/{_HOSTS_PAGE.name}")


if __name__ == "__main__":
    main()
