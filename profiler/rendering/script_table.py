"""The run of a script as text for a terminal."""

from textwrap import fill

from profiler.analysis.scripts import RunLines
from profiler.rendering.script_words import UNIT_NOTE, held_rows, held_title, run_sentences, run_title, short_gib
from profiler.rendering.text_table import text_table

_WIDTH = 80
_SIZES = ("allocated", "reserved")


def script_table(run: RunLines) -> str:
    """Return the table of a run's phases, and what there is to say of it."""
    sentences = [_filled(sentence) for sentence in run_sentences(run)]
    first = 1 if run.record.substitutes else 0
    lines = [*sentences[:first], run_title(run)]
    if run.phases:
        rows = [
            (line.phase.value, short_gib(run, line.allocated_bytes), short_gib(run, line.reserved_bytes))
            for line in run.phases
        ]
        lines += [*text_table(("phase", *_SIZES), rows, numbers=_SIZES), f"{UNIT_NOTE}."]
    lines += sentences[first:]
    if run.largest:
        lines.append(f"{held_title(run)}:")
        lines += text_table(("GiB", "tensors", "what", "line"), held_rows(run), numbers=("GiB", "tensors"))
    return "\n".join(lines) + "\n"


def _filled(sentence: str) -> str:
    return fill(sentence, _WIDTH, break_long_words=False, break_on_hyphens=False)
