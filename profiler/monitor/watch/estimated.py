"""The estimate next to what is measured: what `python -m profiler.estimate` answers for the same files."""

import json
from collections.abc import Sequence
from typing import Any

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.monitored import EstimateBeside
from profiler.estimate.main import answer
from profiler.measurement.driver.visible import VisibleGpu

_GPU = "gpu"


def estimate_beside(words: Sequence[str], gpus: Sequence[VisibleGpu]) -> EstimateBeside | None:
    """Return the estimate for `words`, on the card of this machine unless they name one; None without words.

    Raises:
        UsageError: With all faults that were found.
    """
    if not words:
        return None
    card = _known_card(gpus)
    asked = [*words, *([f"{_GPU}={card}"] if card and not any(word.startswith(f"{_GPU}=") for word in words) else [])]
    content = json.loads(answer([*asked, "format=json"]))
    found = _of_verl(content) if "training_peak_bytes" in content else _of_trial(content)
    if found is None:
        problem = "describes several trials or cards, and one run is compared with one estimate"
        raise UsageError([Fault(key="estimate", found=" ".join(words), problem=problem)])
    peak_bytes, device_bytes, phase = found
    return EstimateBeside(peak_bytes=peak_bytes, device_bytes=device_bytes, phase=phase, text=answer(asked))


def _known_card(gpus: Sequence[VisibleGpu]) -> str | None:
    """Return our name of the first GPU; None if it is unknown."""
    if not gpus:
        return None
    real = gpus[0]
    return next((name for name, known in KNOWN_GPUS.items() if known.is_called(real.name, real.memory_bytes)), None)


def _of_verl(content: dict[str, Any]) -> tuple[int, int | None, str]:
    return int(content["peak_bytes"]), None, str(content["peak_phase"])


def _of_trial(content: dict[str, Any]) -> tuple[int, int | None, str] | None:
    if "peak_allocated_bytes" not in content:
        return None
    wanted = content["trial"].get(_GPU)
    contexts = [card["assumed_context_bytes"] for card in content["gpus"] if card[_GPU] == wanted]
    reserved = content["peak_reserved_bytes"]
    device = None if reserved is None or not contexts or contexts[0] is None else reserved + contexts[0]
    return int(content["peak_allocated_bytes"]), device, str(content["peak_phase"])
