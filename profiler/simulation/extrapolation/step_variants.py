"""Kinds of the pieces of a step or an evaluation, and the numbers of which their sizes are functions."""

from collections.abc import Hashable, Iterator, Mapping
from enum import StrEnum
from itertools import combinations_with_replacement
from typing import Any

import torch

from profiler.analytical.formulas.head import TOKEN_CHUNK
from profiler.analytical.formulas.models.trained import computed_bytes, computes_in_bfloat16
from profiler.config.models.architecture import read_architecture
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.domain.trials.trial import Attention, TrialSpec
from profiler.simulation.cuda.fused_attention.attention import MASK_ALIGNMENT, Kernel, Mask, Request, choose_kernel


class Place(StrEnum):
    """The place of a piece in its step."""

    BEFORE = "before"
    FIRST = "first"
    SECOND = "second"
    """After the first one, which leaves more behind than others."""
    MIDDLE = "middle"
    LAST = "last"
    """With the optimizer. A single micro-batch is the last one."""
    EVALUATED = "evaluated"
    """A batch of an evaluation."""
    BETWEEN = "between"
    """What follows it: its loss is joined to those before it, and the last one ends the evaluation."""


COUNTED = (Place.BEFORE, Place.EVALUATED, Place.BETWEEN)
"""Those whose last feature is a count of rows or of batches, and no length."""


_EARLY = {1: Place.FIRST, 2: Place.SECOND}

Variant = tuple[Place, int, Hashable]
"""The place of a piece in its step, of the step in its cycle of generations, and what decides the piece's events."""


def named(variant: Variant) -> str:
    """Return the words for a variant."""
    match variant[0]:
        case Place.BEFORE:
            return "what precedes the first micro-batch"
        case Place.EVALUATED:
            return "a batch of an evaluation"
        case Place.BETWEEN:
            return "what follows a batch of an evaluation"
        case place:
            return f"the {place} micro-batch"


def variants(shape: StepLengths, *, pads_masks: bool = False) -> Iterator[Variant]:
    """Yield the variant of each piece of a step.

    Args:
        shape: The step.
        pads_masks: Whether the kernel of the attention pads masks whose rows are not aligned: a further block.
    """
    if not shape.micro_batches:
        yield from _of_evaluation(shape, pads_masks)
        return
    before: list[Hashable] = [shape.pads_prompts, *(batch.padded for batch in shape.scored_before)]
    if shape.ended is not None:
        # Without one trl logs no lengths; a single token is attended to by another kernel.
        before += [shape.ended > 0, shape.micro_batches[0].widths[0] == 1, shape.is_loaded]
    if pads_masks:
        before += _aligned_before(shape)
    yield Place.BEFORE, shape.place, tuple(before)
    last = len(shape.micro_batches)
    for number, batch in enumerate(shape.micro_batches, start=1):
        place = Place.LAST if number == last else _EARLY.get(number, Place.MIDDLE)
        kind: list[Hashable] = [batch.rows]
        for rows in (batch, batch.neighbours):
            kind += [] if rows is None else [rows.padded, pads_masks and _is_aligned(rows)]
        kind += [batch.chosen] if batch.chosen else []
        yield place, shape.place, tuple(kind)


def _of_evaluation(shape: StepLengths, pads_masks: bool) -> Iterator[Variant]:
    yield Place.BEFORE, 0, ()
    last, every = len(shape.batches), shape.batches_together
    for number, batch in enumerate(shape.batches, start=1):
        # A cache that is emptied after a batch is so before the first event of the next one.
        is_emptied = every is not None and number > 1 and (number - 1) % every == 0
        yield Place.EVALUATED, int(is_emptied), tuple(kind for _, _, kind in variants(batch, pads_masks=pads_masks))
        # Where losses leave the card on the way, each place among the batches is one of its own.
        place = number if every is not None else 0 if number == last else min(number, _MIDDLE)
        yield Place.BETWEEN, place, ()


_MIDDLE = 3
"""The first batch whose loss is joined to losses that were joined before."""


def _is_aligned(batch: MicroBatch) -> bool:
    return any(batch.padded) and sum(batch.widths) % MASK_ALIGNMENT == 0


def _aligned_before(shape: StepLengths) -> Iterator[bool]:
    """Yield which masks are aligned before training: of prompts, of the first and last token that follow, of rows."""
    prompt, row = shape.micro_batches[0].widths[0], sum(shape.micro_batches[0].widths)
    generated = (prompt, prompt + 1, row - 1) if shape.pads_prompts else ()
    yield from (tokens % MASK_ALIGNMENT == 0 for tokens in generated)
    yield from map(_is_aligned, shape.scored_before)


def step_features(shape: StepLengths) -> Iterator[list[int]]:
    """Yield the features for each piece of a step: its own micro-batch, then those of others that it may prepare.

    Trainers on rows of data load all micro-batches of a step at its start.
    """
    batches = shape.micro_batches
    if not batches:
        yield [0]
        for number, batch in enumerate(shape.batches):
            yield [*features(batch.micro_batches[0], 0), batch.ended or 0]
            yield [number]
        return
    begin = shape.place * len(batches)
    found = [features(batch, place) for place, batch in enumerate(batches, start=begin)]
    scored = [features(batch, place) for place, batch in enumerate(shape.scored_before)]
    others = [loaded(batch) for batch in batches]
    # trl compares the log-probabilities of all completions of a generation with those of vLLM.
    compared = sum(sum(batch.scored) for batch in shape.scored_before)
    yield _joined(found[0], *others[1:], *scored, [compared, shape.ended or 0])
    for number in range(len(batches)):
        yield _joined(found[number], *(others[1:] if number == 0 else others[number + 1 : number + 2]))


def _joined(*found: list[int]) -> list[int]:
    return [each for one in found for each in one]


_MULTIPLES = (8, 32, 64, 128)
"""Kernels and masks round lengths up to them."""


def features(batch: MicroBatch, place: int) -> list[int]:
    """Return the numbers of which sizes are linear functions, the simplest first.

    By hand, a prompt of 3 and a completion of 4 tokens, 5 scored in one part, in place 2: 7 in a row, 3, 4, 5 in all,
    5; both again, but not more than a tile of trl's LM head has; 49, 9, 12, 16; 7 x 8, 3 x 8, 4 x 8; the lengths
    rounded up to 8, 32, 64 and 128; and where the micro-batch begins among the rows of its generation, 14, 6, 8. Then
    those of the rows with the completions of neighbours.
    """
    row = sum(batch.widths)
    lengths = (row, *batch.widths)
    rounded = [-(-length // multiple) * multiple for multiple in _MULTIPLES for length in lengths]
    masks = [length * aligned for length, aligned in zip(lengths, rounded, strict=False)]
    products = [one * other for one, other in combinations_with_replacement(batch.widths, 2)]
    begins = [place * length for length in lengths]
    scored = [sum(batch.scored), *batch.scored]
    tiles = [min(tokens, TOKEN_CHUNK) for tokens in scored]
    own = [row, *batch.widths, *scored, *tiles, row * row, *products, *masks, *rounded, *begins]
    return own if batch.neighbours is None else own + features(batch.neighbours, place)


def loaded(batch: MicroBatch) -> list[int]:
    """Return the numbers of which sizes in pieces of other micro-batches are functions: tokens that are loaded."""
    own = [sum(batch.widths), *batch.widths, sum(batch.scored)]
    return own if batch.neighbours is None else own + loaded(batch.neighbours)


# ---- of a job --------------------------------------------------------------------------------------------------------


def pads_masks(spec: TrialSpec, model_config: Mapping[str, Any]) -> bool:
    """Return whether a kernel of the attention pads masks whose rows are not aligned.

    It is that of any forward, in a rollout or under autocast: by hand, LoRA over float32 weights with `bf16` generates
    in float32, which cuDNN's kernel does not take.
    """
    if spec.attn_implementation is not Attention.SDPA:
        return False
    architecture = read_architecture(model_config, model=spec.model)
    kinds = [kind for kind in (architecture, *architecture.first_layers) if kind.linear is None]
    types = {_computed_type(spec, autocast=autocast) for autocast in (False, True)}
    return any(_masked_kernel(spec, kind, dtype) is Kernel.EFFICIENT for kind in kinds for dtype in types)


def _computed_type(spec: TrialSpec, *, autocast: bool) -> torch.dtype:
    if computed_bytes(spec, autocast=autocast) == torch.float32.itemsize:
        return torch.float32
    return torch.bfloat16 if computes_in_bfloat16(spec, autocast=autocast) else torch.float16


def _masked_kernel(spec: TrialSpec, layers: Architecture, dtype: torch.dtype) -> Kernel:
    """Return the kernel for a row with a mask."""
    card = KNOWN_GPUS[str(spec.gpu)]
    latent = layers.latent
    widths = (layers.head_dim, layers.head_dim) if latent is None else (latent.head_dim, latent.v_head_dim)
    query, value = (torch.Size((1, layers.num_attention_heads, 2, width)) for width in widths)
    return choose_kernel(
        Request(
            query=query,
            key=query,
            value=value,
            dtype=dtype,
            compute_capability=card.compute_capability,
            mask=Mask(shape=torch.Size((1, 1, 2, 2))),
        )
    )
