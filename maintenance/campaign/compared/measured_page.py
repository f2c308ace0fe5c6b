"""The page of a card's measurements: how far each prediction was from the card, every trial, and facts of the card."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from maintenance.accuracy.errors import error_summary
from maintenance.campaign.compared.measured_rows import CALIBRATION_MODELS, SIDES, fits_on, held_out
from maintenance.campaign.compared.simulated import allocator_limit_bytes
from maintenance.pages.kept_page import kept_page
from profiler.domain.memory import as_gib, mib_text
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.recipe import Recipe
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import markdown_table

_PREDICTIONS = (
    ("emulated", "emulated", "allocated"),
    ("emulated", "emulated", "reserved"),
    ("simulated", "simulated", "allocated"),
    ("simulated", "simulated", "reserved"),
    ("simulated, order of addresses corrected", "corrected", "allocated"),
    ("simulated, order of addresses corrected", "corrected", "reserved"),
    ("simulated, with an assumed context", "simulated", "device"),
    ("estimated", "estimated", "allocated"),
    ("estimated", "estimated", "reserved"),
    ("published rule of thumb", "rule", "allocated"),
)
"""Shown name, prefix of the column, metric."""

_SIDES_OF_A_TRIAL = ("emulated", "simulated", "corrected", "estimated")

_NUMBERS = (Align.LEFT, Align.LEFT, *(Align.RIGHT,) * 5)


@dataclass(frozen=True, kw_only=True)
class KeptCampaign:
    """What the page of one campaign says about its trials in addition to their rows."""

    trials: str
    """After their number."""
    committed: str
    """When the predictions were."""
    corrected: str = ""
    """What was corrected after the rows were seen; empty if nothing was."""
    facts: str = ""
    """Of which card the facts are, where they are not those of this one."""
    held_out: str = ""
    """What precedes the errors of the held-out trials alone; empty where those by trainer say enough."""


_BEFORE = "before any of these trials ran, and nothing in them was changed"

_OF_THE_SECOND = (
    "These were taken of another card of this kind, with the same driver and the same versions "
    "([the second campaign](../h200_second/README.md))."
)

CAMPAIGNS: Mapping[str, KeptCampaign] = {
    "h200": KeptCampaign(
        trials="each three optimizer steps or fewer of trl's GRPO",
        committed="before the card was met, and nothing in them was changed; what was corrected afterwards has lines "
        "of its own",
        corrected="Corrected: before torch 2.13 addresses decide which of two free blocks of equal size is taken, and "
        "this driver hands out mostly descending ones, as two histories of a calibrating model show. The simulation "
        "took them to ascend. From torch 2.13 on the age of a segment decides, so no other result changes.",
        held_out="The same over the held-out trials (Llama 3.2 3B, Qwen3 4B, 1,536 tokens), which were named before "
        "the first stage ran ([the rules](../../../docs/campaign.md#what-may-be-learnt-from-which-row)):",
    ),
    "h200_second": KeptCampaign(
        trials="each three optimizer steps or fewer of trl's GRPO, SFT or DPO",
        committed=_BEFORE,
    ),
    "h200_third": KeptCampaign(
        trials="each three optimizer steps or fewer of trl's GRPO, SFT or DPO",
        committed=_BEFORE,
        facts=_OF_THE_SECOND,
    ),
    "h100": KeptCampaign(trials="each three optimizer steps or fewer of trl's GRPO", committed=_BEFORE),
    "h200_fourth": KeptCampaign(
        trials="each three optimizer steps or fewer of trl's GRPO, SFT, KTO or reward model",
        committed=_BEFORE,
        facts=_OF_THE_SECOND,
    ),
}
"""By the folder of `results/reference` that keeps it."""


def measured_page(
    rows: pd.DataFrame, facts: Mapping[str, Any], campaign: KeptCampaign, *, figure: str, command: str
) -> str:
    """Return the page.

    Args:
        rows: Of `measured_rows`.
        facts: Of the card, as `python -m maintenance.campaign facts` keeps them.
        campaign: What the page says in addition.
        figure: Its name, next to the page.
        command: Writes the page again.
    """
    is_held_out = held_out(rows)
    is_calibration = rows.model.isin(CALIBRATION_MODELS) & ~is_held_out
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)
    calibration = f"Of the others, {int(is_calibration.sum())} are of the models that may calibrate."
    return kept_page(
        f"Measured on a real card: {facts['name']}",
        f"{len(rows)} trials, {campaign.trials}, on one {facts['name']} "
        f"({as_gib(facts['total_bytes']):.1f} GiB, driver {facts['driver_version']}, CUDA {facts['cuda_version']}). "
        f"{versions}. Code, formulas and constants of the predictions were committed {campaign.committed}.",
        "## How far each prediction was from the card",
        "Over the trials that end well on both sides. The published rule of thumb is that of a blog "
        "([published measurements](../../../docs/evidence.md#published-rows)).",
        _errors(rows),
        f"![Predicted against measured]({figure})",
        *((campaign.held_out, _errors(rows[is_held_out]), calibration) if campaign.held_out else ()),
        *_by_trainer(rows),
        campaign.corrected,
        _ends(rows),
        *_capped(rows),
        "## Every trial",
        "GiB (2^30 bytes) of allocated and reserved memory at the peak, and the difference of each prediction from the "
        "card: bytes of allocated, then of reserved memory.",
        _trials(rows),
        "## The card",
        campaign.facts,
        _facts(rows, facts),
        command=command,
    )


def _by_trainer(rows: pd.DataFrame) -> Iterable[str]:
    """The errors of each trainer alone, if there are several."""
    recipes = list(dict.fromkeys(rows.recipe))
    for recipe in recipes if len(recipes) > 1 else ():
        found = rows[rows.recipe == recipe]
        yield f"### {recipe.upper()}: {len(found)} trials"
        yield _errors(found)


def _capped(rows: pd.DataFrame) -> Iterable[str]:
    """The verdicts of capped cards, if there are any."""
    capped = rows[rows.gpu.notna()].sort_values(["gpu", "model", "label"], kind="stable")
    if capped.empty:
        return
    yield "## Capped cards"
    yield (
        "The card's own kernels, and an allocator that takes no more than the memory of a smaller card less the "
        "context assumed for that. The context of this card is larger, and lies outside of the limit. Emulated and "
        "simulated trials have the same limit (`per_process_memory_fraction`). The closed form takes what a full card "
        "cannot return; a dot means not run. *tight*: allocated memory is below the limit, and whether its fragments "
        "are is within the error."
    )
    header = ("trial", "limit, GiB", "on the card", "emulated", "simulated", "estimated", "needs, GiB, estimated")
    lines = [
        (
            f"{row['model']}, {row['label']}",
            f"{as_gib(allocator_limit_bytes(str(row['gpu']))):.2f}",
            *(_END.get(str(row[f"{side}_status"]), "·") for side in SIDES.values()),
            str(row["estimated_fit"]),
            f"{as_gib(row['estimated_allocated_bytes']):.2f}",
        )
        for row in capped.to_dict(orient="records")
    ]
    yield markdown_table(header, lines, align=(Align.LEFT, Align.RIGHT, *(Align.LEFT,) * 4, Align.RIGHT))


_END: Mapping[str, str] = {Status.OK.value: "fits", Status.OOM.value: "out of memory"}


def equal_rows(rows: pd.DataFrame, side: str, metric: str) -> int:
    """Return the number of trials that end well on both sides with equal bytes."""
    found = fits_on(rows, _judged_by(side))
    return int((found[f"{side}_{metric}_bytes"] == found[f"measured_{metric}_bytes"]).sum())


def _sides(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return the predictions that these rows have."""
    return tuple(side for side in _SIDES_OF_A_TRIAL if f"{side}_allocated_bytes" in rows)


def _judged_by(side: str) -> tuple[str, ...]:
    """An estimate has no status of its own."""
    return ("measured", side) if side in (*SIDES.values(), "corrected") else ("measured",)


def _errors(rows: pd.DataFrame) -> str:
    header = ("prediction", "memory", "trials", "equal to the byte", "median error", "95th percentile", "worst")
    return markdown_table(header, error_lines(rows), align=_NUMBERS)


def error_lines(rows: pd.DataFrame) -> Sequence[Sequence[str]]:
    """Return a line of words per prediction: trials, how many of them are equal, and errors in percent."""
    lines = []
    for shown, side, metric in _PREDICTIONS:
        if f"{side}_{metric}_bytes" not in rows:
            continue
        found = fits_on(rows, _judged_by(side))
        summary = error_summary(shown, found, f"{side}_{metric}_bytes", f"measured_{metric}_bytes")
        if summary is not None:
            ratios = (summary.median_ratio, summary.p95_ratio)
            worst = f"{summary.worst_ratio * 100:+.3f} %"
            equal = str(equal_rows(rows, side, metric))
            lines.append(
                (shown, metric, str(summary.rows), equal, *(f"{ratio * 100:.3f} %" for ratio in ratios), worst)
            )
    return lines


def _ends(rows: pd.DataFrame) -> str:
    """How the trials ended, and whether each side ended alike."""
    out = rows[rows.measured_status == "oom"]
    said = []
    for side in ("emulated", "simulated"):
        ran = rows[rows[f"{side}_status"].notna()]
        said.append(f"{int((ran[f'{side}_status'] == ran.measured_status).sum())} of {len(ran)} {side}")
    return f"{len(out)} trials ran out of memory on the card. {' and '.join(said)} trials end as on the card."


def _trials(rows: pd.DataFrame) -> str:
    sides = _sides(rows)
    header = ("trial", "allocated", "reserved", *sides)
    ordered = rows.assign(held_out=held_out(rows)).sort_values(["model", "label"], kind="stable")
    return markdown_table(
        header,
        [_trial(row, sides) for row in ordered.to_dict(orient="records")],
        align=(Align.LEFT, *(Align.RIGHT,) * (len(header) - 1)),
    )


def _trial(row: Mapping[Hashable, Any], sides: Iterable[str]) -> tuple[str, ...]:
    end = "" if row["measured_status"] == "ok" else " (out of memory)"
    mark = ", held out" if row["held_out"] else ""
    recipe = "" if row["recipe"] == Recipe.GRPO else f"{row['recipe'].upper()}, "
    name = f"{row['model']}, {recipe}{row['label']}{mark}{end}"
    sizes = (f"{as_gib(row[f'measured_{metric}_bytes']):.2f}" for metric in ("allocated", "reserved"))
    return (name, *sizes, *(_difference(row, side) for side in sides))


def _difference(row: Mapping[Hashable, Any], side: str) -> str:
    if any(row[f"{one}_status"] != "ok" for one in _judged_by(side)):
        return "out of memory" if row.get(f"{side}_status") == "oom" else "·"
    pairs = ((row[f"{side}_{metric}_bytes"], row[f"measured_{metric}_bytes"]) for metric in ("allocated", "reserved"))
    return ", ".join(_bytes(predicted - measured) for predicted, measured in pairs)


def _bytes(difference: int) -> str:
    return "equal" if difference == 0 else f"{difference:+,}"


def _facts(rows: pd.DataFrame, facts: Mapping[str, Any]) -> str:
    contexts = Counter(int(size) for size in rows.context_bytes.dropna())
    said = "; ".join(f"{mib_text(size)} ({size:,} bytes) in {count}" for size, count in contexts.most_common())
    workspace = (
        f"{mib_text(facts['cublas_workspace_bytes'])}, of which {mib_text(facts['cublas_workspace_kept_bytes'])} stay"
    )
    return "\n\n".join(
        (
            _readings(facts["readings"]),
            f"cuBLAS's workspace, in torch's allocator: {workspace}.",
            f"Memory of the device beyond torch's segments, at most, by trials: {said}.",
        )
    )


def _readings(readings: Iterable[Mapping[str, Any]]) -> str:
    columns = (
        ("allocated", "allocated_bytes"),
        ("reserved", "reserved_bytes"),
        ("in use, by mem_get_info", "mem_get_info_used_bytes"),
        ("NVML, device", "nvml_device_bytes"),
        ("NVML, process", "nvml_process_bytes"),
        ("context", "context_bytes"),
    )
    lines: list[Sequence[str]] = [(one["instant"], *(f"{one[key]:,}" for _, key in columns)) for one in readings]
    return markdown_table(
        ("bytes", *(name for name, _ in columns)), lines, align=(Align.LEFT, *(Align.RIGHT,) * len(columns))
    )
