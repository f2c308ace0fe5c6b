"""A second run of an emulated trial, such as on a card without an end if memory ran out.

CUDA does not survive a fork, and a process whose card was used does not become a new one again. So a process is forked
before the trial uses its card. It waits, and runs the trial if it is asked.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from profiler.domain.runs.outcome import Status, UnlimitedCard
from profiler.domain.trials.trial import TrialSpec
from profiler.emulation.card.loaded_card import lift_limit

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
