"""The columns of the tables of a script's folder: its own, and those that it shares with the tables of a sweep."""

from collections.abc import Mapping

import pyarrow as pa

from profiler.domain.script import ScriptWeights
from profiler.domain.trial import Backend
from profiler.storage.schema import BREAKDOWN, PHASES, RESULT, STEPS, VERSIONS, Column, count_column, size, text

_NO_LATE_EVENTS = "no such run, or its figure is unknown"

_RUN = text("run_id", "content hash of the script, of how it is run, and of the versions", identifies=True)

_SPEC = (
    _RUN,
    text("script", "path of the script"),
    text("arguments", "the words after the script, as a shell would take them"),
    text("launcher", "the words in front of the script, such as torchrun", "there is no launcher"),
    text("backend", "cuda: measured; emulated: on an emulated driver; simulated: on a simulated GPU", words=Backend),
    text("gpu", "the emulated or simulated card, or the card that a real one is capped to", "the whole real card"),
    count_column("steps", "optimizer steps", "steps after which the script is ended", "it runs to its end"),
    count_column("num_processes", "processes", "ranks of the job; the figures are those of rank 0"),
    text("weights", "random or checkpoint", words=ScriptWeights),
    count_column("prompt_tokens", "tokens", "length of each prompt in a data set that was replaced"),
    count_column("completion_tokens", "tokens", "length of each completion in such a data set"),
    text("alloc_conf", "PYTORCH_ALLOC_CONF, where it is set", "torch's own settings"),
    text("script_sha256", "hash of the script's text"),
    text("substitutes", "what this machine lacks, and by what it was replaced", "nothing was replaced"),
    count_column("exit_code", "exit code", "with which Python would have ended", "its process was lost", least=None),
    Column(
        name="ended_by_steps",
        kind=pa.bool_(),
        unit="",
        meaning="whether it was ended after its steps, and not by itself",
        null="its process was lost",
    ),
    text("status", "how the run ended; oom is a result"),
    text("late_events_status", "how the emulated run ended whose events were reached late", _NO_LATE_EVENTS),
    size("late_events_allocated_bytes", "peak of allocated memory with late events", _NO_LATE_EVENTS),
    size("late_events_reserved_bytes", "peak of reserved memory with late events", _NO_LATE_EVENTS),
    text("message", "why it did not end well", "it ended well"),
)

_ESTIMATED = "estimated_"

LARGEST = (
    _RUN,
    count_column("rank", "place", "1 for the largest", identifies=True),
    size("bytes", "bytes at the peak, or when an allocation failed", ""),
    count_column("tensors", "tensors", "tensors of this name or from this place"),
    text("name", "name in the model or the optimizer; empty where unknown"),
    text("line", "line of the script; empty where unknown, as in a backward pass"),
    text("library", "innermost line of another library than torch; empty where there is none"),
)


def _of_script(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns of a table of a sweep, with the run in place of the trial."""
    return (_RUN, *(column for column in columns if column.name != "trial_id"))


SCRIPT_TABLES: Mapping[str, tuple[Column, ...]] = {
    "scripts": (*_SPEC, *(column for column in RESULT if not column.name.startswith(_ESTIMATED)), *VERSIONS),
    "script_phases": _of_script(PHASES),
    "script_steps": _of_script(STEPS),
    "script_breakdown": _of_script(BREAKDOWN),
    "script_largest": LARGEST,
}
"""By file name without suffix."""
