"""The large requests of a simulated trial: `python -m profiler.worker.large_requests`, a trial on standard input.

A process of its own, because commands do not import torch.
"""

import json
import sys
from bisect import bisect_right
from contextlib import redirect_stdout
from dataclasses import asdict, replace

from profiler.allocator import Trace
from profiler.allocator.traces.replay import layers_as_one
from profiler.allocator.traces.trace import Site
from profiler.config.trials.identity import spec_from_mapping
from profiler.domain.memory import MIB, Phase
from profiler.domain.runs.outcome import Outcome
from profiler.domain.runs.step_shape import LargeRequest

_SMALLEST_BYTES = 20 * MIB
"""Smaller requests are served by segments of one size for all, whose request says nothing."""


def large_requests(trace: Trace, *, near: int, at_least: int) -> list[LargeRequest]:
    """Return the distinct requests of at least `at_least` bytes, the largest first.

    Args:
        trace: The trial.
        near: Memory in use at the error that is explained.
        at_least: Size of the smallest request.
    """
    starts = [start for start, _ in trace.phase_starts]
    found: dict[LargeRequest, int] = {}
    allocated, sizes_bytes = 0, list(trace.sizes_bytes)
    for index, event in enumerate(trace.events):
        block = abs(event) - 1
        size = sizes_bytes[block]
        if event > 0 and size >= at_least:
            phase = trace.phase_starts[max(0, bisect_right(starts, index) - 1)][1]
            request = _request(phase, size, trace.sites[trace.site_of[block]])
            known = found.get(request)
            if known is None or abs(allocated - near) < abs(known - near):
                found[request] = allocated
        allocated += size if event > 0 else -size
    each = [replace(request, allocated_bytes=most) for request, most in found.items()]
    return sorted(each, key=lambda request: -request.size_bytes)


def _request(phase: Phase, size_bytes: int, site: Site) -> LargeRequest:
    return LargeRequest(
        phase=phase,
        size_bytes=size_bytes,
        operation=site.operation,
        shape=site.shape,
        dtype=site.dtype,
        module=layers_as_one(site.module),
        allocated_bytes=0,
    )


def _verdict(outcome: Outcome) -> dict[str, object]:
    oom, unlimited = outcome.verdict.oom, outcome.unlimited
    return {
        "status": outcome.status.value,
        "phase": oom.phase.value if oom is not None else None,
        "requested_bytes": oom.requested_bytes if oom is not None else None,
        "required_allocated_bytes": unlimited.required_allocated_bytes if unlimited is not None else None,
        "required_unreleasable_bytes": unlimited.required_unreleasable_bytes if unlimited is not None else None,
        "context_bytes": outcome.card.context_bytes,
    }


def main() -> int:
    """Simulate the trial on standard input, and print its large requests and its verdict as JSON."""
    from profiler.domain.errors import UnsupportedTrialError
    from profiler.measurement.counters.untouched_cuda import compiled_at_first_call

    with compiled_at_first_call():
        from profiler.worker.simulated import card_of, outcome_on_card, simulate

    job = json.loads(sys.stdin.read())
    spec = spec_from_mapping(job["spec"])
    try:
        with redirect_stdout(sys.stderr):  # the trainer prints
            run = simulate(spec, job["model_config"])
    except UnsupportedTrialError as error:
        sys.stdout.write(json.dumps({"problem": str(error)}))
        return 0
    requests = large_requests(run.trace.on(card_of(spec).chip), near=job["allocated_bytes"], at_least=_SMALLEST_BYTES)
    sys.stdout.write(
        json.dumps({"requests": [asdict(each) for each in requests], "verdict": _verdict(outcome_on_card(run, spec))})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
