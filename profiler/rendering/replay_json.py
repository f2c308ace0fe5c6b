"""Replayed histories as JSON, for scripts. Sizes are integers of bytes."""

import json
from collections.abc import Mapping, Sequence

from profiler.allocator.histories.answer import Answer, Scenario
from profiler.allocator.histories.course import Course, OutOfMemory
from profiler.allocator.settings.alloc_conf import alloc_conf_text


def replay_json(answers: Sequence[Mapping[str, object]], unreadable: Mapping[str, str]) -> str:
    """Return one JSON object: every history as `answer_mapping` returns it, and unreadable files with the reason."""
    return json.dumps({"snapshots": list(answers), "unreadable": dict(unreadable)}, indent=2) + "\n"


def answer_mapping(name: str, found: Answer) -> dict[str, object]:
    """Return one history as plain values."""
    comparison, history = found.comparison, found.history
    return {
        "file": name,
        "device": history.device,
        "other_devices": [
            {"device": each.device, "entries": each.entries, "first_out_of_memory_entry": each.first_oom}
            for each in history.others
        ],
        "entries": len(history.entries),
        "streams": len(history.streams),
        "alloc_conf": alloc_conf_text(history.config),
        "first_reserved_bytes": comparison.first.reserved_bytes if comparison.is_consistent else None,
        "unverified_entries": comparison.unverified_entries,
        "replayed_entries": comparison.replayed_entries,
        "is_equal": None if comparison.is_empty and not comparison.departure else comparison.is_equal,
        "departure": comparison.departure,
        "recorded": {"origin": "recorded"} | _course(comparison.course) if comparison.is_consistent else None,
        "begun_anew": _scenario(found.anew) if found.anew else None,
        "what_if": _scenario(found.after) if found.after else None,
    }


def _scenario(scenario: Scenario) -> dict[str, object]:
    result = scenario.result
    return {
        "origin": "replayed",
        "alloc_conf": alloc_conf_text(scenario.config),
        "gpu": scenario.gpu.name if scenario.gpu else None,
        "capacity_bytes": scenario.capacity.size_bytes,
        "capacity_source": scenario.capacity.source.value,
        "capacity_at_most_bytes": scenario.capacity.most_bytes,
        "fits": result.fits,
        "might_fit": scenario.might_fit,
        "refused": _refusal(result.refused) if result.refused else None,
        "served_entries": list(result.served),
        **_course(result.course),
    }


def _course(course: Course) -> dict[str, object]:
    peak = course.peak
    return {
        "peak_reserved_bytes": peak.reserved_bytes,
        "peak_reserved_entry": peak.entry,
        "allocated_at_peak_bytes": peak.allocated_bytes,
        "fragmentation_at_peak_bytes": peak.free_bytes,
        "largest_free_at_peak_bytes": peak.largest_free_bytes,
        "segments_at_peak": peak.segments,
        "peak_allocated_bytes": course.peak_allocated_bytes,
        "peak_unreleasable_bytes": course.peak_unreleasable_bytes,
        "num_alloc_retries": course.num_alloc_retries,
        "out_of_memory": [_refusal(refusal) for refusal in course.refusals],
    }


def _refusal(refusal: OutOfMemory) -> dict[str, object]:
    return {
        "entry": refusal.entry,
        "requested_bytes": refusal.requested_bytes,
        "driver_free_bytes": refusal.driver_free_bytes,
        "allocated_bytes": refusal.allocated_bytes,
        "reserved_bytes": refusal.reserved_bytes,
        "largest_free_bytes": refusal.largest_free_bytes,
    }
