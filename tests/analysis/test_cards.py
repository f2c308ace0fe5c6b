"""The headroom of each card, with the same trials."""

from dataclasses import replace

import builders

from profiler.analysis.compared.comparison import compare
from profiler.analysis.findings.answers import by_card, headroom_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import GIB
from profiler.domain.runs.outcome import Status
from profiler.rendering.sweep.words import card_names, headroom_text

CARDS = ("h100-80gb", "rtx-4090-24gb")


def sections(folder, cards=CARDS, *, context=GIB):
    specs = [builders.spec(gpu=gpu, model=model) for gpu in cards for model in ("qwen2.5-0.5b", "qwen2.5-3b")]
    records = []
    for record in builders.records(specs):
        out = record.outcome
        device = out.peaks.allocated_bytes + context if out.status is Status.OK else None
        changed = builders.changed(
            out,
            peak_device_bytes=device,
            context_bytes=context,
            required_unreleasable_bytes=out.unlimited.required_allocated_bytes,
        )
        records.append(replace(record, outcome=changed))
    return compare(builders.tables(folder, records).runs)


def test_cards_are_in_ascending_size_and_labels_leave_them_out(tmp_path):
    table = by_card(sections(tmp_path))
    assert card_names(table) == ["rtx-4090-24gb", "h100-80gb"]
    assert table.places == (("full + checkpointing", "qwen2.5-0.5b"), ("full + checkpointing", "qwen2.5-3b"))
    assert len(table.cells) == 4


def test_one_card_needs_no_table(tmp_path):
    assert by_card(sections(tmp_path, CARDS[:1])) is None
    assert by_card(()) is None


def test_a_cache_that_can_be_released_is_headroom(tmp_path):
    table = by_card(sections(tmp_path))
    fits = table.cells[table.places[0], table.columns[1]]
    memory = KNOWN_GPUS["h100-80gb"].memory_bytes
    full = replace(fits, peak_device_bytes=memory - 1, required_device_bytes=memory - 5 * GIB)
    assert headroom_bytes(full) == 5 * GIB
    # It fits, although an unlimited card keeps more.
    assert headroom_bytes(replace(full, required_device_bytes=memory + GIB)) == 1
    assert headroom_bytes(replace(full, required_device_bytes=None)) == 1


def test_headroom_by_hand(tmp_path):
    table = by_card(sections(tmp_path))
    small, large = table.columns
    fits = table.cells[table.places[0], large]
    # The card's memory less the tensors and a context of 1 GiB.
    assert headroom_bytes(fits) == KNOWN_GPUS["h100-80gb"].memory_bytes - fits.peak_allocated_bytes - GIB
    lacks = table.cells[table.places[1], small]
    assert lacks.status is Status.OOM
    assert headroom_bytes(lacks) == KNOWN_GPUS["rtx-4090-24gb"].memory_bytes - lacks.required_allocated_bytes - GIB < 0
    assert headroom_text(lacks).startswith("-")
    assert headroom_text(fits).startswith("+")
    assert headroom_text(None) == "·"
    assert headroom_text(replace(fits, peak_device_bytes=None, required_device_bytes=None)) == "fits"
    assert headroom_text(replace(fits, status=Status.FAILED)) == "failed"
