"""Sentences about a replayed history, for its table and its figure."""

from collections.abc import Iterator, Sequence

from profiler.allocator.alloc_conf import alloc_conf_text
from profiler.allocator.histories.course import BEFORE, OutOfMemory
from profiler.allocator.histories.history import RecordedDevice, RecordedHistory
from profiler.allocator.histories.recorded import RecordedComparison
from profiler.allocator.histories.what_if import Capacity, CapacitySource, Question, Scenario
from profiler.allocator.model.card_memory import size_text
from profiler.allocator.settings import AllocatorConfig
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.memory import gib_text

MOST_SHOWN = 3
"""Maximum number of out-of-memory entries in a list."""
MOST_DEVICES = 8
"""Maximum number of other devices that are named."""
ORIGIN_NOTE = (
    "Segments of the recorded column are read from the snapshot, its blocks are replayed by the model. All other "
    "columns are replayed by the model, not measured."
)
ANEW_NOTE = (
    "Begun anew: the blocks in use at the beginning are requested first, by address; what was only cached then is not "
    "made again."
)
NOTHING_TRIED_NOTE = (
    "Nothing else was tried: its segments are expandable already. Name other settings with alloc_conf= or another "
    "card with gpu=."
)
COMPARE_NOTE = "So compare the what-if with this column."


def settings_text(config: AllocatorConfig) -> str:
    """Return settings in the syntax of PYTORCH_ALLOC_CONF."""
    return alloc_conf_text(config) or "PyTorch's defaults"


def first_text(comparison: RecordedComparison) -> str:
    """Describe the state at the beginning of the history."""
    first = comparison.first
    if not first.segments:
        return "It begins with an empty cache."
    number = "1 segment" if len(first.segments) == 1 else f"{len(first.segments):,} segments"
    text = f"It begins in the middle: {size_text(first.reserved_bytes)} were held in {number}."
    if comparison.unverified_entries:
        text += f" Entries up to {comparison.unverified_entries - 1:,} belong to a request that began earlier."
    return text


def others_text(history: RecordedHistory) -> str:
    """Name the other devices of a snapshot, those that ran out of memory first; empty if there are none."""
    if not history.others:
        return ""
    ordered = sorted(history.others, key=lambda each: each.first_oom is None)
    named = "; ".join(map(_device_text, ordered[:MOST_DEVICES]))
    more = len(ordered) - MOST_DEVICES
    rest = f"; and {more} more" if more > 0 else ""
    return f"The file has other devices: {named}{rest}. device={ordered[0].device} shows that one."


def _device_text(device: RecordedDevice) -> str:
    entries = "1 entry" if device.entries == 1 else f"{device.entries:,} entries"
    ran_out = "" if device.first_oom is None else f", out of memory at entry {device.first_oom:,}"
    return f"device {device.device} ({entries}{ran_out})"


def departure_text(comparison: RecordedComparison) -> str:
    """Describe whether the model equals the recording."""
    if not comparison.is_consistent:
        return (
            f"It cannot be replayed, because its entries do not lead to its segments: {comparison.departure}. Was the "
            "history still being recorded when the snapshot was made?"
        )
    if comparison.is_empty and not comparison.departure:
        return (
            "Nothing was replayed, because the history has no entries that change memory: only what was held at the "
            "end is known. Record with torch.cuda.memory._record_memory_history() before _dump_snapshot."
        )
    if comparison.is_equal:
        return "Replayed by the model: equal to the recording, every block and every segment."
    if comparison.departure:
        return (
            f"Replayed by the model: equal to the recording up to {comparison.departure}. The recorded column ends "
            "there."
        )
    return "Replayed by the model: the segments at the end are not the recorded ones."


def scenario_text(question: Question, scenario: Scenario) -> str:
    """Describe the conditions of the what-if."""
    settings = settings_text(scenario.config)
    if question.is_empty:
        changed = f"{settings}, tried because neither alloc_conf= nor gpu= was given."
    elif question.alloc_conf is None:
        changed = f"the recorded settings, {settings}."
    else:
        changed = f"{settings}."
    return " ".join([changed, capacity_text(scenario), *notes_on_settings(scenario.config)])


def capacity_text(scenario: Scenario) -> str:
    """Describe the memory that the process could take, and its source."""
    match scenario.capacity.source, scenario.capacity.size_bytes, scenario.gpu:
        case CapacitySource.GPU, int(size), gpu if gpu is not None:
            context = cuda_context_bytes(gpu.compute_capability)
            return (
                f"On {gpu.name} the process can take {gib_text(size, 2)}: {gib_text(gpu.memory_bytes, 2)} without the "
                f"CUDA context, which is assumed to be {gib_text(context, 2)}."
            )
        case CapacitySource.OOM, int(size), _:
            return f"The card is the recorded one: {gib_text(size, 2)} for the process, as seen when it ran out."
        case CapacitySource.FULL, int(size), _:
            most = scenario.capacity.most_bytes
            known = f"at least {gib_text(size, 2)}" if most is None else f"{gib_text(size, 2)} to {gib_text(most, 2)}"
            return f"The card is the recorded one, which was full at times: {known} for the process."
    return "The card has no limit: a snapshot does not say how much memory there was. Name one with gpu=."


def verdict_text(scenario: Scenario) -> str:
    """Describe whether the program would have finished; empty without a limit."""
    result = scenario.result
    if scenario.might_fit and not result.fits and scenario.capacity.most_bytes is not None:
        refusals = [*result.course.refusals, *([result.refused] if result.refused is not None else [])]
        return (
            f"Whether it would have fitted is open: with the least of that it runs out of memory at "
            f"{entries_text([refusal.entry for refusal in refusals])}, with the most it fits."
        )
    if result.refused is not None:
        return f"It would have run out of memory {refusal_text(result.refused)} Its column ends there."
    if result.course.refusals:
        refused = entries_text([refusal.entry for refusal in result.course.refusals])
        served = f" What was refused at {entries_text(result.served)} would have been served." if result.served else ""
        return f"It would have run out of memory as recorded, at {refused}.{served}"
    if result.served:
        return f"It would have fitted: what was refused at {entries_text(result.served)} would have been served."
    return "" if scenario.capacity.size_bytes is None else "It would have fitted."


def refusal_text(refusal: OutOfMemory) -> str:
    """Describe a refused request and the memory at that instant: the end of a sentence, and another sentence."""
    where = "before the first entry" if refusal.entry == BEFORE else f"at entry {refusal.entry:,}"
    driver = "" if refusal.driver_free_bytes is None else f", {size_text(refusal.driver_free_bytes)} left on the card"
    cached = refusal.reserved_bytes - refusal.allocated_bytes
    return (
        f"{where}: {size_text(refusal.requested_bytes)} requested, {size_text(refusal.allocated_bytes)} allocated of "
        f"{size_text(refusal.reserved_bytes)} reserved{driver}. Of {size_text(cached)} that were cached and free, the "
        f"largest block that the request could use had {size_text(refusal.largest_free_bytes)}."
    )


def entries_text(numbers: Sequence[int]) -> str:
    """Return the first entries and the number of further ones."""
    shown = ", ".join(f"{number:,}" for number in numbers[:MOST_SHOWN])
    more = len(numbers) - MOST_SHOWN
    return f"{'entry' if len(numbers) == 1 else 'entries'} {shown}" + (f" and {more:,} more" if more > 0 else "")


def notes_on_settings(config: AllocatorConfig) -> Iterator[str]:
    """Yield sentences about settings without effect."""
    if config.garbage_collection_threshold > 0:
        if config.per_process_memory_fraction >= 1:
            yield (
                "garbage_collection_threshold changes nothing here: PyTorch collects only where "
                "per_process_memory_fraction is below 1."
            )
        elif config.expandable_segments:
            yield "garbage_collection_threshold changes nothing here: expandable segments are not collected."


def short_capacity_text(capacity: Capacity, gpu_name: str | None) -> str:
    """Return the label of the limit in a figure; empty if there is none."""
    if capacity.size_bytes is None:
        return ""
    size = gib_text(capacity.size_bytes, 2)
    if capacity.source is CapacitySource.GPU:
        return f"{size} ({gpu_name} without the CUDA context)"
    return f"{size} or more (the recorded card)" if capacity.source is CapacitySource.FULL else f"{size} (as recorded)"
