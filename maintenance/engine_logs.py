"""Compare what vLLM printed on real cards with the parts that the closed form has: `python -m maintenance.engine_logs`.

It prints the table of docs/evidence.md. The figures are rounded to 0.01 GiB by vLLM. Nothing is fitted to them.
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from profiler.analytical.formulas.vllm_memory import (
    BLOCK_TOKENS,
    ENGINE_ELEMENT_BYTES,
    kv_block_bytes,
    sharded_parameters,
)
from profiler.config.models.lookup import builtin_architecture
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.memory import GIB
from profiler.rendering.layouts.markdown import markdown_table

COLUMNS = (
    "log", "weights", "parameters x 2 B", "part of the card", "sum of the parts", "KV cache", "blocks x their bytes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One log of vLLM, and what the closed form has instead; in GiB, None where one of them is unknown."""

    name: str
    where: str
    weights: float
    parameters: float | None
    requested: float | None
    """Part of the card that vLLM may use."""
    parts: float | None
    """Sum of what vLLM printed: weights, memory outside of torch, activations, KV cache."""
    kv_cache: float | None
    blocks: float | None
    """By the number of blocks or tokens that vLLM printed, and the bytes of one block."""

    def cells(self) -> Sequence[str]:
        """Return the row of the table."""
        values = (self.weights, self.parameters, self.requested, self.parts, self.kv_cache, self.blocks)
        return [f"[{self.name}]({self.where})", *("·" if value is None else f"{value:.2f}" for value in values)]


def compared() -> Iterator[Compared]:
    """Yield the logs in `profiler/published/engine_logs.csv`."""
    text = (files("profiler") / "published" / "engine_logs.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        yield _compared(row)


def _compared(row: Mapping[str, str]) -> Compared:
    architecture = builtin_architecture(row["model"]) if row["model"] else None
    utilization, card, kv_cache = (_number(row, name) for name in ("utilization", "card_gib", "kv_cache_gib"))
    others = [_number(row, name) for name in ("weights_gib", "non_torch_gib", "activations_gib")]
    known = [value for value in (*others, kv_cache) if value is not None]
    return Compared(
        name=row["id"],
        where=row["where"],
        weights=float(row["weights_gib"]),
        parameters=_weights(architecture, row),
        requested=None if utilization is None or card is None else utilization * card,
        parts=sum(known) if len(known) == len(others) + 1 else None,
        kv_cache=kv_cache,
        blocks=_blocks(architecture, row),
    )


def _weights(architecture: Architecture | None, row: Mapping[str, str]) -> float | None:
    if architecture is None or row["quantised"] == "true":
        return None
    return int(sharded_parameters(architecture, gpus=int(row["tensor_parallel"]))) * ENGINE_ELEMENT_BYTES / GIB


def _blocks(architecture: Architecture | None, row: Mapping[str, str]) -> float | None:
    blocks, tokens = (_number(row, name) for name in ("kv_blocks", "kv_tokens"))
    if tokens is not None:
        blocks = tokens / BLOCK_TOKENS
    if architecture is None or not blocks:
        return None
    return blocks * int(kv_block_bytes(architecture, gpus=int(row["tensor_parallel"]))) / GIB


def _number(row: Mapping[str, str], name: str) -> float | None:
    return float(row[name]) if row[name] else None


def table() -> str:
    """Return the table of docs/evidence.md."""
    return markdown_table(COLUMNS, [each.cells() for each in compared()])


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
