"""The page of the claims, for GitHub and as one HTML file."""

from collections.abc import Collection, Sequence

from profiler.analysis.verdicts import Judged
from profiler.domain.claims import Check, TextSource
from profiler.rendering.claims.table import count_text
from profiler.rendering.claims.words import (
    claimed_text,
    found_text,
    origin_text,
    ours_text,
    reason_text,
    verdict_text,
)
from profiler.rendering.document import (
    Block,
    Details,
    Document,
    Figure,
    Heading,
    Medium,
    RenderedFigure,
    Section,
    Table,
    Text,
    Tone,
    text_columns,
)

_TITLE = "The claims of five public texts, judged"

_ABOUT = (
    "What five public texts claim about the memory of GRPO, compared with stored trials, and with the closed form "
    "of this program where a trial is not stored. Configurations and tolerances are in "
    "profiler/published/claims.yaml, and were written down before any trial of the grid claims was kept; the "
    "trials of the grid oxen_2025 and the run of the blog's script were kept before, and blog-table-script came later "
    "with the tolerance of blog-table. Nothing of it is measured on a real card unless a row says so."
)

_COLUMNS = ("claim", "claimed", "ours", "origin", "verdict", "reason")
_SETTINGS = ("setting", "claimed", "ours", "as claimed")


def claims_page(judged: Sequence[Judged], figure: RenderedFigure) -> Document:
    """Return the page of all claims, with the figure of those that can be drawn."""
    count = count_text(judged)
    start: list[Block] = [
        Text(_ABOUT),
        Text(count, only=(Medium.MARKDOWN,)),
        Figure(figure, alt=figure.title),
    ]
    sources = dict.fromkeys(each.claim.source for each in judged)
    sections = [_section(source, [each for each in judged if each.claim.source == source]) for source in sources]
    lead = Text(count, only=(Medium.HTML,))
    return Document(title=_TITLE, lead=lead, blocks=[Section("", start), *sections])


def _section(source: TextSource, judged: Sequence[Judged]) -> Section:
    """Return the claims of one text, and every setting of those that have several."""
    blocks: list[Block] = [
        Text(source.where, Tone.NOTE, only=(Medium.HTML,)),
        Table(text_columns(_COLUMNS), [_row(each) for each in judged]),
    ]
    detailed = [each for each in judged if len(each.findings) > 1 or each.claim.check is Check.LOOKED_UP]
    if detailed:
        # The HTML page shows the settings from the start.
        blocks.append(Details("Every setting", _settings(detailed, level=4), only=(Medium.MARKDOWN,)))
        blocks += _settings(detailed, level=3, only=(Medium.HTML,))
    return Section(source.title, blocks)


def _settings(judged: Sequence[Judged], *, level: int, only: Collection[Medium] = tuple(Medium)) -> list[Block]:
    blocks: list[Block] = []
    for each in judged:
        blocks.append(Heading(each.claim.id, level=level, only=only))
        blocks.append(Table(text_columns(_SETTINGS), _setting_rows(each), only=only))
    return blocks


def _row(judged: Judged) -> Sequence[str]:
    claim = judged.claim
    says = f"{claim.says} ({claim.id})"
    return says, claim.figure, found_text(judged), origin_text(judged), verdict_text(judged), reason_text(judged)


def _setting_rows(judged: Judged) -> list[Sequence[str]]:
    said = {True: "yes", False: "no", None: "not known"}
    claim = judged.claim
    return [
        (each.setting.when, claimed_text(claim, each), ours_text(claim, each), said[each.holds])
        for each in judged.findings
    ]
