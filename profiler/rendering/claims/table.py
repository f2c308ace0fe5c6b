"""Verdicts on claims as a table of the terminal, and as JSON."""

from collections import Counter
from collections.abc import Sequence

from profiler.analysis.verdicts import ClaimVerdict, Finding, Judged
from profiler.domain.claims import End, Range
from profiler.rendering.claims.words import (
    claimed_text,
    found_text,
    origin_text,
    ours_text,
    reason_text,
    verdict_text,
)
from profiler.rendering.document import Block, Code, Details, Document, Section, Table, Text, text_columns
from profiler.rendering.layouts.json_text import json_text
from profiler.rendering.layouts.plain_text import Lines, plain_text

_LINES = Lines(width=100, at_hyphens=True)


def claims_table(judged: Sequence[Judged], *, every_setting: bool) -> str:
    """Return the claims of each text with figures and verdict, and below them how many there are of each verdict."""
    sections = []
    for title in dict.fromkeys(each.claim.source.title for each in judged):
        own = [each for each in judged if each.claim.source.title == title]
        sections.append(Section(title, [_claim(each, every_setting=every_setting) for each in own]))
    document = Document(title="Claims", blocks=[*sections, Section("", [Code(count_text(judged))])])
    return plain_text(document, _LINES)


def count_text(judged: Sequence[Judged]) -> str:
    """Return how many claims there are of each verdict, in one sentence."""
    counts = Counter(each.verdict for each in judged)
    parts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in ClaimVerdict if counts[verdict])
    return f"{len(judged)} {'claim' if len(judged) == 1 else 'claims'}: {parts}."


def _claim(judged: Judged, *, every_setting: bool) -> Details:
    found = found_text(judged)
    ours = f"; ours: {found} ({origin_text(judged)})" if found else ""
    blocks: list[Block] = [
        Text(judged.claim.says),
        Text(f"Claimed: {judged.claim.figure}{ours}."),
        Text(reason_text(judged)),
    ]
    if every_setting:
        rows = [_row(judged, finding) for finding in judged.findings]
        blocks.append(Section("", [Table(text_columns(("setting", "claimed", "ours", "")), rows)]))
    return Details(f"{judged.claim.id}: {verdict_text(judged)}", blocks)


def _row(judged: Judged, finding: Finding) -> tuple[str, str, str, str]:
    claim = judged.claim
    said = {True: "holds", False: "does not hold", None: "not known"}[finding.holds]
    return finding.setting.when, claimed_text(claim, finding), ours_text(claim, finding), said


def claims_json(judged: Sequence[Judged]) -> str:
    """Return the same as JSON, with the figures of every setting in the unit of the claim."""
    return json_text([_mapping(each) for each in judged], in_ascii=False)


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
