"""The page: peaks by release of each package, what jumps and why, and what does not run."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from maintenance.pages.kept_page import kept_page
from maintenance.releases.compared import LEAST_JUMP, Change, Jump, jumps, of_size, run_of
from maintenance.releases.runs import ACCEPTED_VLLM, FSDP, MODELS, PACKAGES, RUNS, VLLM, Package, Size
from profiler.domain.memory import as_gib, mib_text
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import escaped, markdown_table

_NAMED = 4
"""Tensors of a jump."""


def sizes_with_rows(rows: pd.DataFrame) -> Sequence[tuple[Package, Size]]:
    """Return the packages and sizes that have rows: each has a figure."""
    there = set(zip(rows.package, rows.model, rows.gpus, strict=True))
    return [
        (package, size)
        for package in PACKAGES
        for size in package.sizes
        if (package.name, size.model, size.gpus) in there
    ]


def figure_of(package: Package, size: Size) -> str:
    """Return the name of the figure of a package and a size, next to the page."""
    return f"{package.name}{size.ending}.png"


def releases_page(rows: pd.DataFrame, tensors: pd.DataFrame, causes: Mapping[tuple[str, str, str], str]) -> str:
    """Return the page.

    Args:
        rows: Of `rows_of`.
        tensors: Of the same.
        causes: What a jump comes from, by package, release after it, and job.
    """
    found = jumps(rows, tensors)
    return kept_page(
        "What each release costs",
        f"{len(rows)} of {len(RUNS)} runs on an emulated H100 80GB: [the same script](../../../examples/scripts/"
        "trl_recipe.py) with one release after the other of a package, and all other packages as they are. Nothing "
        "here is measured. The script sets what makes the job (four rows of 512 tokens per GPU, two micro-batches, "
        "bf16, gradient checkpointing) and leaves the rest to defaults: a changed default shows. Of two GPUs the first "
        "rank is emulated. With trl 1.16 both ranks ran as processes too (`gpus=2xh100-80gb`): the first had the same "
        "peak to the byte, and the other 0.1 % less.",
        _sizes(rows),
        "Peaks are of allocated memory in GiB (2^30 bytes). A dot: it fails; an empty cell: it has not run yet. In "
        "brackets the error of the closed form (`python -m profiler.estimate config=examples/scripts/trl_recipe.yaml "
        "trl=1.4 recipe=sft`), where it has one.",
        _estimated(rows),
        *(
            block
            for package in PACKAGES
            if package.name in set(rows.package)
            for block in _blocks(package, rows[rows.package == package.name], found, causes)
        ),
        command="python -m maintenance.releases results_dir=results/reference",
    )


def _sizes(rows: pd.DataFrame) -> str:
    """What ran of each size, and how far the closed form is from it."""
    lines = []
    for size in dict.fromkeys(run.size for run in RUNS):
        own = of_size(rows, size)
        ended = own[own.end == "ok"]
        errors = (ended.estimated_bytes / ended.allocated_bytes - 1).dropna().astype(float)
        name = MODELS[size.model].partition("/")[2]
        lines.append(
            (
                name
                if size.gpus == 1
                else f"{name}, {size.gpus} GPUs by [FSDP 2](../../../examples/scripts/{FSDP.name})",
                f"{len(own)} of {sum(run.size == size for run in RUNS)}",
                str(len(ended)),
                str(len(errors)),
                *(
                    ("", "")
                    if errors.empty
                    else (f"{errors.abs().median():.1%}", f"{errors.min():+.1%} to {errors.max():+.1%}")
                ),
            )
        )
    return markdown_table(
        ("job", "ran", "end well", "closed form answers", "median error", "errors"),
        lines,
        align=(Align.LEFT, *(Align.RIGHT,) * 5),
    )


def _blocks(
    package: Package, rows: pd.DataFrame, found: Sequence[Jump], causes: Mapping[tuple[str, str, str], str]
) -> Iterator[str]:
    """Yield what there is to say of one package, whose rows are given."""
    own = [jump for jump in found if jump.after.package == package.name]
    failed = rows[rows.end != "ok"]
    yield f"## {package.name}"
    yield f"Others: {'; '.join(rows.others.dropna().unique())}."
    if package.engine:
        bounds = "; ".join(f"{release} {accepted}" for release, accepted in ACCEPTED_VLLM.items())
        yield (
            f"GRPO whose completions vLLM {VLLM} makes on the same GPU, with the releases that accept it. What each "
            "release of trl accepts (`is_vllm_available` in `trl/import_utils.py`, before 0.24 its metadata): "
            f"{bounds}."
        )
    for _, size in sizes_with_rows(rows):
        yield f"![Peak of allocated memory by release of {package.name}, {size.title}]({figure_of(package, size)})"
        yield _peaks(package, size, of_size(rows, size))
    yield f"### Jumps of {package.name} above {LEAST_JUMP:.0%}"
    if own:
        yield (
            "Between a release and the one before it with which the job runs. Tensors are those among the ten largest "
            "of both peaks, by their names or the file that made them."
        )
    yield _jumps(own, causes) if own else f"None: the peaks of a job differ by at most {_spread(rows):.3%}."
    if len(failed):
        yield f"### What does not run with {package.name}"
        always = "With the other packages as they are: an older release may run with those of its time."
        yield " ".join(filter(None, (always, package.why_some_fail)))
        yield _failed(failed)


def _spread(rows: pd.DataFrame) -> float:
    """Return by which part the highest peak of a job is above its lowest, of the job with most; 0 without a peak."""
    by_job = rows[rows.end == "ok"].groupby(["trainer", "tuning", "model", "gpus"]).allocated_bytes
    spreads = by_job.max().astype(float) / by_job.min().astype(float) - 1
    return float(spreads.max()) if len(spreads) else 0.0


def _peaks(package: Package, size: Size, rows: pd.DataFrame) -> str:
    jobs = [(job.trainer, job.tuning) for job in package.jobs_of(size)]
    sizes = {(row["release"], row["trainer"], row["tuning"]): row for row in rows.to_dict("records")}
    lines = []
    for release in reversed(package.releases):
        own = [sizes.get((release, *job)) for job in jobs]
        if any(own):
            lines.append((release, *(_peak(row) if row else "" for row in own)))
    return markdown_table(
        (f"{package.name}, {size.title}", *(f"{trainer.upper()}, {tuning}" for trainer, tuning in jobs)),
        lines,
        align=(Align.LEFT, *(Align.RIGHT,) * len(jobs)),
    )


def _peak(row: Mapping[Hashable, Any]) -> str:
    peak, estimated = row["allocated_bytes"], row["estimated_bytes"]
    if pd.isna(peak):
        return "·"
    return f"{as_gib(peak):.2f}" + (f" ({estimated / peak - 1:+.1%})" if pd.notna(estimated) else "")


def _estimated(rows: pd.DataFrame) -> str:
    """How far the closed form is from the peaks that both have."""
    errors = (rows.estimated_bytes / rows.allocated_bytes - 1).dropna().astype(float)
    if errors.empty:
        return ""
    return (
        f"The closed form answers {len(errors)} of {int((rows.end == 'ok').sum())} runs that end well: "
        f"{errors.abs().median():.1%} off in the median, {errors.min():+.1%} to {errors.max():+.1%}. No constant of it "
        "was fitted to one of them, but five formulas came after they had shown what was wrong: that of what SFT logs "
        "before trl 1.7 (up to 5 % too high), that of copies of weights under checkpointing (up to 1 %), and that of "
        "`chunked_nll` in 1.7 to 1.14, which had none (8 to 20 % too low); that of QLoRA before 0.26, whose norms and "
        "adapters are in float32 (SFT of 7B was 4 % too low), and that of log-probabilities outside of autocast. This "
        "project's trainer had made them within one, which widened them with FSDP 2 (GRPO of 0.29 to 1.14 was 3 to "
        "16 % too high), and the kernel of 1.14 had counted as the log-softmax of 0.14 (6 % too high on one GPU). trl "
        "makes them of the outputs (`_get_per_token_logps` in `trl/trainer/grpo_trainer.py`), in their type. The "
        "lowest is QLoRA with transformers 5.1, whose loading has no formula (below).\n\n"
        "FSDP 2 of weights in float32, trl's default from 0.27 on, was refused before these runs: accelerate keeps "
        "trained weights in float32 and gathers all in bfloat16, whatever type they were loaded in, so that 0.27 "
        "changes nothing there. The closed form was written so from the source, and then compared. SFT of 1.7 to 1.14 "
        "with FSDP 2 was refused too: its formulas are those of one GPU without autocast, written when 1.7.1 and "
        "1.14.2 had run, and the others had not."
    )


def _jumps(found: Sequence[Jump], causes: Mapping[tuple[str, str, str], str]) -> str:
    lines = [
        (
            jump.after.job,
            f"{jump.before.release} to {jump.after.release}",
            f"{as_gib(jump.before_bytes):.2f} to {as_gib(jump.after_bytes):.2f}",
            f"{jump.ratio:+.1%}",
            escaped("; ".join(map(_change, jump.changes[:_NAMED]))),
            escaped(causes.get((jump.after.package, jump.after.release, jump.after.job), "not looked for")),
        )
        for jump in found
    ]
    return markdown_table(("job", "releases", "GiB", "change", "tensors", "cause, in the sources"), lines)


def _change(change: Change) -> str:
    return f"{change.what} {'+' if change.bytes > 0 else '-'}{mib_text(abs(change.bytes), 0)}"


def _failed(failed: pd.DataFrame) -> str:
    """One line per sentence, with the runs that end with it."""
    said: dict[str, list[str]] = {}
    for row in failed.to_dict("records"):
        run = run_of(row)
        said.setdefault(str(row["end"]), []).append(f"{run.release} ({run.job})")
    return "\n".join(f"- {', '.join(runs)}: {escaped(end)}" for end, runs in said.items())
