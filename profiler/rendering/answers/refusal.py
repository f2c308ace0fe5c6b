"""An out-of-memory error with what it matches, as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.analytical.explanation.tensors import NamedTensor
from profiler.domain.memory import gib_text
from profiler.rendering.document import Block, Document, paragraphs
from profiler.rendering.layouts.plain_text import plain_text


@dataclass(frozen=True, kw_only=True)
class RefusalAnswer:
    """What a log says, and what it matches."""

    said: str
    """The message in short."""
    cause: str
    """The word for why the request was refused."""
    why: str
    phase: str | None
    """By the traceback; None if it names none."""
    tensors: tuple[NamedTensor, ...] | None
    """Of the estimate, with the size of the request; None if no job was named."""
    nearest: NamedTensor | None
    reading: str
    """What the request may have been if no tensor matches; empty otherwise."""
    simulated: tuple[str, ...]
    """Lines of the simulation; empty if nothing was simulated."""
    job: str
    """What the whole job needs of that card; empty if no job was named."""
    change: tuple[str, ...]
    """What to change, as sentences."""

    def texts(self) -> list[str]:
        """Return the answer as paragraphs; some may be empty."""
        return [self.said, self.why, *self._tensor_texts(), *self.simulated, self.job, *self.change]

    def as_object(self) -> dict[str, object]:
        """Return the answer as values of JSON."""
        return {
            "said": self.said,
            "cause": self.cause,
            "why": self.why,
            "phase": self.phase,
            "tensors": [_object(tensor) for tensor in self.tensors or ()],
            "nearest": _object(self.nearest) if self.nearest is not None and not self.tensors else None,
            "reading": self.reading,
            "simulated": list(self.simulated),
            "job": self.job,
            "change": list(self.change),
        }

    def _tensor_texts(self) -> list[str]:
        if self.tensors is None:
            return []
        if self.tensors:
            return [f"Estimate: the request has the size of {tensor_text(tensor)}." for tensor in self.tensors]
        found = ["Estimate: no tensor of this job has the size of the request."]
        if self.nearest is not None:
            found.append(f"The nearest is {tensor_text(self.nearest)}.")
        return [" ".join([*found, self.reading]).rstrip()]


def refusal_text(answer: RefusalAnswer, advice: Sequence[Block] = ()) -> str:
    """Return the answer as text, and the blocks of the advice for its job."""
    return plain_text(Document(title=answer.said, blocks=[paragraphs(*answer.texts()), *advice]))


def tensor_text(tensor: NamedTensor) -> str:
    """Return a tensor in words: ``"logits of the completions, [4, 787, 151936] of 4 B, 1.78 GiB, in forward"``."""
    shape = ", ".join(map(str, tensor.shape))
    phases = ", ".join(tensor.phases)
    old = "" if tensor.happens else ", as earlier versions of trl make them"
    size = gib_text(tensor.size_bytes, 2)
    return f"{tensor.name}, [{shape}] of {tensor.element_bytes} B, {size}, in {phases}{old}"


def _object(tensor: NamedTensor) -> dict[str, object]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "bytes": tensor.size_bytes,
        "phases": [phase.value for phase in tensor.phases],
        "of_this_version": tensor.happens,
    }
