"""Parts of imported rows that several sources share."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.domain.memory import GIB
from profiler.domain.runs.shared import Metric, Peak, ReadBy, Row

MIB = 1 << 20
ATTENTION_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")

OF_LOOP = {"recipe": "sft", "logprobs": "nll", "bf16": False, "lengths": "forced", "gradient_accumulation_steps": 1}
"""Keys of a loop over a transformers model with labels: transformers' own loss, without autocast."""

CAST_TO_FLOAT32 = (
    "peft's prepare_model_for_kbit_training has cast what is not in 4 bits to float32, hence dtype=float32; "
    "weights in 4 bits are multiplied in 16 bits, not in float32"
)
LOOP_KEEPS_LOGITS = (
    "a loop over the model ran, which keeps its output, with all logits, during backward; a trainer does not"
)


@dataclass(frozen=True, kw_only=True)
class Clone:
    """A repository that others keep rows in, fetched to this machine."""

    name: str
    """Owner and name on GitHub."""
    commit: str
    licence: str
    rows: Callable[["Reader"], Iterator[Row]]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Files of one commit."""

    folder: Path
    clone: Clone

    def files(self, under: str, end: str) -> list[str]:
        """Return the files of a folder whose names end with `end`, sorted."""
        listed = self._git("ls-tree", "-r", "--name-only", self.clone.commit, under).splitlines()
        return sorted(name for name in listed if name.endswith(end))

    def text(self, path: str) -> str:
        """Return the text of a file."""
        return self._git("show", f"{self.clone.commit}:{path}")

    def address(self, path: str) -> str:
        """Return where others can open the file."""
        return f"https://github.com/{self.clone.name}/blob/{self.clone.commit}/{path}"

    def _git(self, *words: str) -> str:
        done = subprocess.run(("git", "-C", str(self.folder), *words), check=True, capture_output=True, text=True)
        return done.stdout


def counters(allocated: int | None, reserved: int, *, unit_bytes: int) -> tuple[Peak, ...]:
    """Return peaks that torch's counters reported."""
    found = ((Metric.ALLOCATED, allocated), (Metric.RESERVED, reserved))
    return tuple(
        Peak(metric=metric, size_bytes=size, unit_bytes=unit_bytes, read_by=ReadBy.TORCH_COUNTER)
        for metric, size in found
        if size is not None
    )


def gib_bytes(size: float) -> int:
    """Return a printed size in GiB as bytes."""
    return round(size * GIB)


def targets_of(names: Sequence[str]) -> list[str]:
    """Return the names of adapted modules in the order of a layer."""
    order = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return sorted(names, key=order.index)
