"""The outcome of a trial on an emulated card, and a second run on a card without an end.

A second run of an emulated trial, such as on a card without an end if memory ran out.

CUDA does not survive a fork, and a process whose card was used does not become a new one again. So a process is forked
before the trial uses its card. It waits, and runs the trial if it is asked.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import Gpu
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import NOT_EMULATED
from profiler.domain.runs.outcome import (
    CardFacts,
    EmulatedDetails,
    MeasuredDetails,
    Outcome,
    Peaks,
    Status,
    UnlimitedCard,
    Verdict,
    Work,
)
from profiler.domain.trials.trial import TrialSpec
from profiler.emulation.card import Marks, lift_limit

if TYPE_CHECKING:
    from profiler.worker.cuda.card_decoding import CardDecoding


Needs = Callable[[], UnlimitedCard | None]
"""Runs a trial on a card without an end; None if it does not end well there either."""


class WaitingProcess:
    """A forked process that calls a function once it is asked, and ends with this process."""

    def __init__(self, needs: Needs) -> None:
        own_question, question = os.pipe()
        answer, own_answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(question)
            os.close(answer)
            _serve(own_question, own_answer, needs)
        os.close(own_question)
        os.close(own_answer)
        self._question, self._answer = os.fdopen(question, "wb"), os.fdopen(answer, "rb")

    def ask(self) -> UnlimitedCard | None:
        """Let it run; return its answer, and None if it has none."""
        self._question.write(b"?")
        self._question.flush()
        text = self._answer.read()
        return UnlimitedCard(**json.loads(text)) if text else None

    def end(self) -> None:
        """End it, if it was not asked, and wait for its end."""
        self._question.close()
        self._answer.close()
        os.waitpid(self._pid, 0)


@contextmanager
def waiting_process(needs: Needs) -> Iterator[WaitingProcess]:
    """Return a process that can be asked as long as the block runs."""
    process = WaitingProcess(needs)
    try:
        yield process
    finally:
        process.end()


def needs_on_an_unlimited_card(
    spec: TrialSpec, model_config: Mapping[str, Any], *, decoding: "CardDecoding | None", beat: Callable[[], None]
) -> UnlimitedCard | None:
    """Run the trial on the emulated card of its specification, without the end of its memory."""
    from profiler.worker.cuda.real import run_real

    lift_limit()
    # Without `gpu`, which would cap the card.
    outcome = run_real(replace(spec, gpu=None), model_config, decoding=decoding, beat=beat).outcome
    if outcome.status is not Status.OK or outcome.peaks.allocated_bytes is None:
        return None
    return UnlimitedCard(
        required_allocated_bytes=outcome.peaks.allocated_bytes, required_reserved_bytes=outcome.peaks.reserved_bytes
    )


def _serve(question: int, answer: int, needs: Needs) -> None:
    """Wait for the question, answer it and end; without one, end."""
    try:
        if os.read(question, 1):
            found = needs()
            if found is not None:
                sizes = (found.required_allocated_bytes, found.required_reserved_bytes)
                names = ("required_allocated_bytes", "required_reserved_bytes")
                os.write(answer, json.dumps(dict(zip(names, sizes, strict=True))).encode())
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


_REFUSED_BY_TORCH = (
    "is only supported for CUDA devices with compute capability",
    "does not have a sharding strategy registered",
)
"""Parts of torch's messages about an operation that it does not have for a card or for shards (bitsandbytes)."""


def refusal(error: Exception) -> Outcome | None:
    """Return the outcome of a trial that transformers, trl or torch refuse on the card; None for other errors."""
    message = (str(error).splitlines() or [""])[0]
    if isinstance(error, UnsupportedTrialError) or any(words in message for words in _REFUSED_BY_TORCH):
        return Outcome(verdict=Verdict(status=Status.UNSUPPORTED, message=message))
    return None


def as_emulated(
    outcome: Outcome, gpu: Gpu, *, marks: Marks, steps_extrapolated: int = 0, substitutes: Sequence[str] = ()
) -> Outcome:
    """Return the outcome of the measured path as that of an emulated trial on `gpu`.

    Peaks of torch's counters stay. Times, samples and the driver's figures go: nothing was computed, and the driver is
    not a real one. Memory of the device is reserved memory and the context that the simulation assumes as well.

    Args:
        outcome: As the measured path returns it.
        gpu: The card.
        marks: What the emulated driver has noted about the process.
        steps_extrapolated: Decoding steps that did not run.
        substitutes: What took the place of a package, a phrase each.
    """
    context = cuda_context_bytes(gpu.compute_capability)
    return replace(
        outcome,
        verdict=replace(
            outcome.verdict,
            unavailable=_unavailable(marks, steps_extrapolated, substitutes),
            message=_marked(outcome),
        ),
        work=_without_time(outcome.work),
        card=CardFacts(name=gpu.title, memory_bytes=gpu.memory_bytes, context_bytes=context),
        peaks=_counted(outcome.peaks, context),
        measured=_of_counters(outcome.measured) if outcome.measured else None,
        emulated=EmulatedDetails(values=marks.values),
    )


def _unavailable(marks: Marks, steps_extrapolated: int, substitutes: Sequence[str]) -> str:
    """Return what the figures lack: what no emulation has, and what the driver has noted about this trial."""
    values = [f"a value that the host read: {name}" for name in marks.values_read]
    assumed = [f"assumed: {assumption}" for assumption in marks.assumptions]
    unseen = [f"what {name} does, which the emulated driver does not answer" for name in marks.unseen_entry_points]
    steps = [f"{steps_extrapolated:,} decoding steps, which were extrapolated"] if steps_extrapolated else []
    return "; ".join((NOT_EMULATED, *substitutes, *values, *assumed, *unseen, *steps))


def _marked(outcome: Outcome) -> str:
    """Return the message of the outcome; torch's own about memory says where it comes from."""
    if outcome.status is not Status.OOM or outcome.verdict.oom is None:
        return outcome.message
    return f"{outcome.message} (Emulated, in {outcome.verdict.oom.phase}.)"


def _without_time(work: Work) -> Work:
    return replace(work, step_time_s=None, gpu_s=None)


def _counted(peaks: Peaks, context_bytes: int) -> Peaks:
    return replace(
        peaks,
        device_bytes=None if peaks.reserved_bytes is None else peaks.reserved_bytes + context_bytes,
        phases=tuple(
            replace(
                peak,
                time_s=None,
                samples=None,
                sampled_max_device_bytes=None,
                mean_utilisation_percent=None,
                mean_power_watts=None,
                mean_sm_clock_mhz=None,
            )
            for peak in peaks.phases
        ),
    )


def _of_counters(measured: MeasuredDetails) -> MeasuredDetails:
    return MeasuredDetails(
        settled_step=measured.settled_step,
        growth_bytes_per_step=measured.growth_bytes_per_step,
        step_peaks=tuple(replace(peak, time_s=None, context_bytes=None) for peak in measured.step_peaks),
    )
