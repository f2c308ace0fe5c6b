"""Verdicts on claims as a table of the terminal, and as JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from textwrap import wrap

from profiler.analysis.verdicts import Finding, Judged, Verdict
from profiler.domain.claims import End, Range
from profiler.rendering.claims.words import (
    claimed_text,
    found_text,
    origin_text,
    ours_text,
    reason_text,
    verdict_text,
)
from profiler.rendering.layouts.text_table import text_table

_WIDTH = 100


def claims_table(judged: Sequence[Judged], *, every_setting: bool) -> str:
    """Return the claims of each text with figures and verdict, and below them how many there are of each verdict."""
    blocks = []
    for title in dict.fromkeys(each.claim.source.title for each in judged):
        own = [each for each in judged if each.claim.source.title == title]
        blocks.append("\n".join([title, "", *_lines(own, every_setting=every_setting)]))
    return "\n\n".join([*blocks, count_text(judged)]) + "\n"


def count_text(judged: Sequence[Judged]) -> str:
    """Return how many claims there are of each verdict, in one sentence."""
    counts = Counter(each.verdict for each in judged)
    parts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
    return f"{len(judged)} {'claim' if len(judged) == 1 else 'claims'}: {parts}."


def _lines(judged: Sequence[Judged], *, every_setting: bool) -> list[str]:
    lines = []
    for each in judged:
        lines += [f"{each.claim.id}: {verdict_text(each)}"]
        lines += _indented(each.claim.says)
        found = found_text(each)
        ours = f"; ours: {found} ({origin_text(each)})" if found else ""
        lines += _indented(f"Claimed: {each.claim.figure}{ours}.")
        lines += _indented(reason_text(each))
        if every_setting:
            rows = [_row(each, finding) for finding in each.findings]
            lines += ["", *(f"  {line}" for line in text_table(("setting", "claimed", "ours", ""), rows, numbers=()))]
    return lines


def _row(judged: Judged, finding: Finding) -> tuple[str, str, str, str]:
    claim = judged.claim
    said = {True: "holds", False: "does not hold", None: "not known"}[finding.holds]
    return finding.setting.when, claimed_text(claim, finding), ours_text(claim, finding), said


def _indented(text: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_long_words=False)


def claims_json(judged: Sequence[Judged]) -> str:
    """Return the same as JSON, with the figures of every setting in the unit of the claim."""
    return json.dumps([_mapping(each) for each in judged], indent=2, ensure_ascii=False) + "\n"


def _mapping(judged: Judged) -> dict[str, object]:
    claim = judged.claim
    return {
        "id": claim.id,
        "source": claim.source.id,
        "says": claim.says,
        "figure": claim.figure,
        "check": claim.check.value,
        "quantity": claim.quantity,
        "unit": claim.unit,
        "tolerance": claim.tolerance,
        "origins": [origin.value for origin in judged.origins],
        "verdict": judged.verdict.value,
        "reason": reason_text(judged),
        "settings": [
            {
                "when": finding.setting.when,
                "claimed": _plain(finding.claimed),
                "ours": _plain(finding.found),
                "origin": finding.origin,
                "holds": finding.holds,
                "text": finding.text,
            }
            for finding in judged.findings
        ],
    }


def _plain(value: Range | End | float | None) -> object:
    return {"from": value.low, "to": value.high} if isinstance(value, Range) else value
