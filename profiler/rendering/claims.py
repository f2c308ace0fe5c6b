"""Claims and their verdicts: in words, as a table of the terminal, and as a page.

Claims and verdicts in words. Every number is that of a finding.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from profiler.analysis.verdicts import ClaimVerdict, Finding, Judged
from profiler.domain.claims import Check, Claim, End, ExperimentLook, Line, Looked, Quantity, Range, TextSource
from profiler.domain.trials.labels import CONSTRUCTED, is_constructed
from profiler.rendering.document import (
    Block,
    Code,
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
from profiler.rendering.layouts.plain_text import Lines, json_text, plain_text

_MOST_NAMED = 3
"""Most settings that a reason spells out."""

_QUANTITIES = {
    Quantity.PEAK_ALLOCATED: "peak of allocated memory",
    Quantity.PEAK_RESERVED: "peak of reserved memory",
    Quantity.PEAK_DEVICE: "peak on the card",
    Quantity.WEIGHTS: "size of the weights",
    Quantity.REFERENCE: "size of the reference model",
    Quantity.GRADIENTS: "largest size of the gradients",
    Quantity.KEPT_GRADIENTS: "size of the gradients at the optimizer's step",
    Quantity.OPTIMIZER_STATE: "size of the optimizer's states",
    Quantity.ACTIVATIONS: "size of the activations",
    Quantity.PARAMETERS: "number of parameters",
    Quantity.PEAK: "peak per GPU",
    Quantity.TRAINING_PEAK: "peak per GPU without the rollout",
    Quantity.ROLLOUT_POOL: "pool of the rollout engine",
    Quantity.UNUSED: "unused part of the card",
    Quantity.STEP_TIME: "least time of a step without its rollout",
}

_WITHOUT_QUANTITY = {
    Check.ENABLES: "fits or not",
    Check.ARITHMETIC: "the text's own sums",
    Check.LOOKED_UP: "looked up",
}

_ENDS = {End.FITS: "fits", End.OOM: "out of memory"}


def quantity_text(claim: Claim) -> str:
    """Return what is compared."""
    if claim.quantity is None:
        return _WITHOUT_QUANTITY.get(claim.check, "")
    return _QUANTITIES[claim.quantity]


def origin_text(judged: Judged) -> str:
    """Return where our figures come from."""
    if judged.origins:
        constructed = any(is_constructed(configuration.keys) for configuration in judged.claim.configurations)
        tag = f", {CONSTRUCTED}" if constructed else ""
        return " and ".join(origin.value for origin in judged.origins) + tag
    if judged.claim.check is Check.ARITHMETIC:
        return "the text's parts"
    if judged.claim.check is Check.LOOKED_UP:
        settings = judged.claim.settings
        has_run = any(isinstance(each, Looked) and isinstance(each.look, ExperimentLook) for each in settings)
        return "computed on the CPU" if has_run else "looked up"
    return ""


def found_text(judged: Judged) -> str:
    """Return what we found, of all settings together."""
    numbers = [finding.found for finding in judged.findings if isinstance(finding.found, float)]
    ends = [finding.found for finding in judged.findings if isinstance(finding.found, End)]
    parts = []
    if numbers:
        parts.append(_span(min(numbers), max(numbers), judged.claim))
    parts += [f"{ends.count(end)} x {_ENDS[end]}" for end in End if end in ends]
    if judged.claim.check in (Check.LOOKED_UP, Check.ENABLES):
        known = [finding.holds for finding in judged.findings if finding.holds is not None]
        parts = [f"{sum(known)} of {len(known)}"] if known else []
    return ", ".join(parts)


def verdict_text(judged: Judged) -> str:
    """Return the verdict, with the settings in which the claim holds if there are others."""
    if judged.verdict is not ClaimVerdict.ONLY_WHEN:
        return judged.verdict.value
    holding = [finding.setting.when for finding in judged.findings if finding.holds]
    if len(holding) <= _MOST_NAMED:
        return f"{judged.verdict.value}: {'; '.join(holding)}"
    return f"{judged.verdict.value}: {len(holding)} of {len(judged.findings)} settings"


def reason_text(judged: Judged) -> str:
    """Return the reason of a verdict in one sentence."""
    claim = judged.claim
    if claim.check is Check.UNDECIDABLE:
        return f"Not decidable here, because {claim.because}."
    known = [finding for finding in judged.findings if finding.holds is not None]
    if not known:
        return f"Not decidable here, because {judged.findings[0].text}."
    if len(judged.findings) <= _MOST_NAMED:
        said = "; ".join(finding_text(claim, finding) for finding in judged.findings)
    else:
        said = _summary(claim, known, len(judged.findings))
    return f"{_sentence(quantity_text(claim))}{said}{_expected(claim)}."


def finding_text(claim: Claim, finding: Finding) -> str:
    """Return one setting with what was found in it."""
    if finding.holds is None:
        return f"{finding.setting.when}: not known, because {finding.text}"
    return f"{finding.setting.when}: {_found(claim, finding)}"


def claimed_text(claim: Claim, finding: Finding) -> str:
    """Return the figure that is claimed in one setting."""
    if isinstance(finding.claimed, End):
        return _ENDS[finding.claimed]
    return "" if finding.claimed is None else range_text(finding.claimed, _unit(claim), signed=_is_change(claim))


def ours_text(claim: Claim, finding: Finding) -> str:
    """Return what was found in one setting, or why nothing was."""
    return _found(claim, finding) if finding.holds is not None else f"not known: {finding.text}"


def range_text(found: Range, unit: str, *, signed: bool) -> str:
    """Return a claimed range: "16 GB", "-20 to -15 %", "at least +10 %"."""
    low, high = (None if end is None else _number(end, signed=signed) for end in (found.low, found.high))
    if low is None or high is None:
        return f"at least {low} {unit}" if high is None else f"at most {high} {unit}"
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def _found(claim: Claim, finding: Finding) -> str:
    if isinstance(finding.found, End):
        return _ENDS[finding.found]
    if finding.found is None:
        return finding.text.rstrip(".") or ("yes" if finding.holds else "no")
    shown = f"{_number(finding.found, signed=_is_change(claim))} {_unit(claim)}"
    if isinstance(finding.claimed, End):
        return shown
    if isinstance(finding.setting, Line):
        return f"{finding.setting.sum_text} = {shown}"
    return shown


def _summary(claim: Claim, known: list[Finding], settings: int) -> str:
    """Return how many settings agree, and the one that is farthest from what is claimed."""
    agreeing = sum(bool(finding.holds) for finding in known)
    said = f"it is as claimed in {agreeing} of {settings} settings"
    if len(known) < settings:
        said += f" ({settings - len(known)} not known)"
    wrong = [finding for finding in known if not finding.holds]
    if not wrong:
        return said
    worst = max(wrong, key=_distance)
    claimed = claimed_text(claim, worst)
    against = f", where {claimed} is claimed" if claimed else ""
    return f"{said}; the farthest is {finding_text(claim, worst)}{against}"


def _distance(finding: Finding) -> float:
    if not isinstance(finding.found, float) or not isinstance(finding.claimed, Range):
        return 0.0
    ends = [end for end in (finding.claimed.low, finding.claimed.high) if end is not None]
    return min(abs(finding.found - end) / max(abs(end), 1.0) for end in ends)


def _sentence(what: str) -> str:
    return f"{what[:1].upper()}{what[1:]}: " if what else ""


def _expected(claim: Claim) -> str:
    """Return what would have counted as holding, for claims with one figure."""
    if claim.check is Check.CHANGE and claim.claimed is not None:
        tolerance = f", give or take {claim.tolerance:g} points" if claim.tolerance else ""
        return f" ({range_text(claim.claimed, '%', signed=True)} is claimed{tolerance})"
    if claim.check is Check.VALUE and claim.tolerance:
        return f" (within {claim.tolerance:g} % counts as equal)"
    if claim.check is Check.ARITHMETIC:
        return f" (within {claim.tolerance:g} {claim.unit} counts as equal)"
    return ""


def _span(low: float, high: float, claim: Claim) -> str:
    signed = _is_change(claim)
    one, other = _number(low, signed=signed), _number(high, signed=signed)
    return f"{one} {_unit(claim)}" if one == other else f"{one} to {other} {_unit(claim)}"


def _is_change(claim: Claim) -> bool:
    return claim.check is Check.CHANGE


def _unit(claim: Claim) -> str:
    return "%" if _is_change(claim) else claim.unit


def _number(value: float, *, signed: bool) -> str:
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}".removesuffix(".0")
    text = "0" if text == "-0" else text
    return f"+{text}" if signed and value > 0 and text != "0" else text


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
        Table(text_columns(_COLUMNS), [_page_row(each) for each in judged]),
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


def _page_row(judged: Judged) -> Sequence[str]:
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
