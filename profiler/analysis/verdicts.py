"""Claims judged by figures: what each setting finds, and the verdict of all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from profiler.analysis.compared.published import PublishedFigure
from profiler.domain.claims import Claim, Configuration, End, Line, Looked, Pair, Quantity, Range, Setting, Single
from profiler.domain.memory import GIB, Origin


class ClaimVerdict(StrEnum):
    """What is found about a claim."""

    HOLDS = "holds"
    """In every setting."""
    ONLY_WHEN = "holds only when"
    """In some settings and not in others."""
    DOES_NOT_HOLD = "does not hold"
    """In no setting."""
    NOT_DECIDABLE = "not decidable here"
    """No figure, or no figure for some settings and no setting in which it holds."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A quantity of a configuration. `value` is in bytes, parameters or percent, as the quantity is."""

    value: float | None
    end: End | None
    """How it ended; None if unknown."""
    origin: Origin | None
    parameters: int | None = None
    problem: str = ""
    """Why there is no value."""


@dataclass(frozen=True, kw_only=True)
class LookedUp:
    """The kept result of a look-up."""

    is_so: bool
    """Whether it was there, or ended as claimed."""
    found: str
    """What was found, as a phrase."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one setting says about its claim."""

    setting: Setting
    holds: bool | None
    """None: not known."""
    claimed: Range | End | None = None
    found: float | End | None = None
    """In the unit of the claim; a change in percent."""
    origin: Origin | None = None
    text: str = ""
    """What was found, where it is no figure; or why nothing was."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim with its verdict."""

    claim: Claim
    verdict: ClaimVerdict
    findings: tuple[Finding, ...]

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Where its figures come from, the strongest first."""
        found = {finding.origin for finding in self.findings}
        return tuple(origin for origin in Origin if origin in found)


FiguresOf = Callable[[Sequence[Configuration], Quantity], Sequence[Figure]]
"""Returns a quantity of each of some configurations, all of one origin."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything by which claims are judged."""

    figures_of: FiguresOf
    published: Mapping[str, PublishedFigure]
    looked_up: Mapping[tuple[str, str], LookedUp]
    """By the id of the claim and `when`."""


_UNITS: Mapping[str, float] = {"GB": 1e9, "GiB": GIB, "billion parameters": 1e9}
"""Units of a claimed value, in bytes or parameters."""

PER_PARAMETER = "bytes per parameter"

_ENDS_BY = Quantity.PEAK_RESERVED
"""The quantity that is asked for where only the end of a configuration counts."""


def judge(claim: Claim, evidence: Evidence) -> Judged:
    """Return the verdict on a claim."""
    findings = tuple(_finding(claim, setting, evidence) for setting in claim.settings)
    return Judged(claim=claim, verdict=_verdict(findings), findings=findings)


def _verdict(findings: Sequence[Finding]) -> ClaimVerdict:
    known = [finding.holds for finding in findings if finding.holds is not None]
    if not known or (len(known) < len(findings) and not any(known)):
        return ClaimVerdict.NOT_DECIDABLE
    if all(known) and len(known) == len(findings):
        return ClaimVerdict.HOLDS
    return ClaimVerdict.ONLY_WHEN if any(known) else ClaimVerdict.DOES_NOT_HOLD


def _finding(claim: Claim, setting: Setting, evidence: Evidence) -> Finding:
    match setting:
        case Line():
            holds = abs(setting.value - setting.printed) <= claim.tolerance * (1 + 1e-9)
            claimed = Range(low=setting.printed, high=setting.printed)
            return Finding(setting=setting, holds=holds, claimed=claimed, found=setting.value)
        case Looked():
            kept = evidence.looked_up.get((claim.id, setting.when))
            if kept is None:
                return Finding(setting=setting, holds=None, text="it was not looked up")
            return Finding(setting=setting, holds=kept.is_so, text=kept.found)
        case Single():
            return _single(claim, setting, evidence)
        case Pair():
            return _change(claim, setting, evidence) if claim.claimed is not None else _enables(setting, evidence)


def _single(claim: Claim, setting: Single, evidence: Evidence) -> Finding:
    claimed = _claimed(setting, evidence)
    (figure,) = evidence.figures_of([setting.configuration], claim.quantity or _ENDS_BY)
    if isinstance(claimed, End):
        if figure.end is None:
            return Finding(setting=setting, holds=None, claimed=claimed, text=figure.problem)
        holds = figure.end is claimed
        return Finding(setting=setting, holds=holds, claimed=claimed, found=figure.end, origin=figure.origin)
    found = _in_unit(figure, claim.unit)
    if found is None:
        return Finding(setting=setting, holds=None, claimed=claimed, text=figure.problem)
    holds = claimed.widened(claimed.largest * claim.tolerance / 100).contains(found)
    return Finding(setting=setting, holds=holds, claimed=claimed, found=found, origin=figure.origin)


def _claimed(setting: Single, evidence: Evidence) -> Range | End:
    if setting.claimed is not None:
        return setting.claimed
    value = evidence.published[setting.published or ""].value
    return End.OOM if value is None else Range(low=value, high=value)


def _in_unit(figure: Figure, unit: str) -> float | None:
    if figure.value is None:
        return None
    if unit == PER_PARAMETER:
        return figure.value / figure.parameters if figure.parameters else None
    return figure.value / _UNITS.get(unit, 1)


def _change(claim: Claim, setting: Pair, evidence: Evidence) -> Finding:
    quantity = claim.quantity or _ENDS_BY
    before, after = evidence.figures_of([setting.before, setting.after], quantity)
    problem = before.problem or after.problem
    if before.value is None or after.value is None or not before.value:
        return Finding(setting=setting, holds=None, claimed=claim.claimed, text=problem or "it is 0 before")
    percent = 100 * (after.value / before.value - 1)
    holds = claim.claimed is not None and claim.claimed.widened(claim.tolerance).contains(percent)
    return Finding(setting=setting, holds=holds, claimed=claim.claimed, found=percent, origin=after.origin)


def _enables(setting: Pair, evidence: Evidence) -> Finding:
    before, after = evidence.figures_of([setting.before, setting.after], _ENDS_BY)
    if before.end is None or after.end is None:
        return Finding(setting=setting, holds=None, text=before.problem or after.problem)
    holds = before.end is End.OOM and after.end is End.FITS
    text = ENDS[before.end, after.end]
    return Finding(setting=setting, holds=holds, text=text, origin=after.origin)


ENDS: Mapping[tuple[End, End], str] = {
    (End.OOM, End.FITS): "only the second fits",
    (End.FITS, End.FITS): "both fit",
    (End.OOM, End.OOM): "both run out of memory",
    (End.FITS, End.OOM): "only the first fits",
}
"""How two configurations end, as a phrase."""
