"""Estimates of a table of trials: the same formulas, computed with arrays.

Trials to which the same formulas apply (same recipe, tuning, types, log-probs, attention, checkpointing, LoRA modules
and engine) form a group and are computed together. Within a group, numbers are arrays.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from profiler.analytical.baselines import rule_of_thumb
from profiler.analytical.estimate import (
    MOST_REPLAYED,
    estimate,
    estimate_with_replay,
    has_form,
    refuse_model,
    refuse_without_form,
)
from profiler.analytical.formulas.sizes.quantities import Coded, Count, Flag, Number, either, larger
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.timeline.cached import peak_reserved_bytes
from profiler.analytical.timeline.instants import Instant
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.domain.architectures.architecture import (
    Architecture,
    IdleTensors,
    LatentAttention,
    LayerInputs,
    VisionTower,
)
from profiler.domain.errors import UsageError
from profiler.domain.memory import TRIAL_PHASES, Phase
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.keys import Key, Kind
from profiler.domain.trials.trial import SPEC_KEYS, TRIAL_KEYS, TrialSpec


def _is_number(key: Key) -> bool:
    return key.is_numeric or key.kind is Kind.FLAG


_ONE_VALUE = (
    "recipe",
    "tuning",
    "dtype",
    "logprobs",
    "attn_implementation",
    "gradient_checkpointing",
    "use_liger_kernel",
    "critic",
    "precompute_ref_log_probs",
    "ref_adapter",
    "bnb_4bit_use_double_quant",
    "lora_target_modules",
    "use_vllm",
    "reward_models",
    "per_device_eval_batch_size",
    "distributed_type",
    "fsdp_reshard_after_forward",
    "fsdp_activation_checkpointing",
    "fsdp_cpu_ram_efficient_loading",
    "cp_size",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
)
_NUMBERS = tuple(key.name for key in TRIAL_KEYS if _is_number(key) and key.name not in _ONE_VALUE)
_CODED = tuple(key for key in SPEC_KEYS if key not in (*_NUMBERS, *_ONE_VALUE))


_MOST_IN_ARRAYS = 2**40
"""Rows times squared tokens of a trial up to which every size of the closed form fits in the 64 bits of an array."""


@dataclass(frozen=True, kw_only=True)
class TrialTable:
    """Trials as columns."""

    keys: Mapping[str, Coded[Any]]
    """One column per key of `TrialSpec`."""
    architectures: Mapping[str, Architecture]
    """The architecture of each model in the column `model`."""
    rows: int


def table_of(specs: Sequence[TrialSpec], architectures: Mapping[str, Architecture]) -> TrialTable:
    """Return `specs` as columns, in order."""
    columns = {key: _coded([getattr(spec, key) for spec in specs]) for key in SPEC_KEYS}
    return TrialTable(keys=columns, architectures=architectures, rows=len(specs))


def product_table(
    base: TrialSpec,
    axes: Mapping[str, Sequence[object]],
    architectures: Mapping[str, Architecture],
    *,
    tied: Mapping[str, tuple[str, Sequence[object]]] | None = None,
) -> TrialTable:
    """Return all combinations of the values of `axes`, the other keys as in `base`; the first axis varies slowest.

    No specification is built per row, and values are not checked or normalised as `profiler.config` does.

    Args:
        base: The values of all other keys.
        axes: The values of each key that varies.
        architectures: The architecture of each model.
        tied: Keys that vary with an axis: its name, and a value for each of its values.
    """
    shape = tuple(len(values) for values in axes.values())
    rows = int(np.prod(shape, dtype=np.int64))
    indices = np.indices(shape, dtype=np.int32).reshape(len(shape), rows)
    of_axis = dict(zip(axes, indices, strict=True))
    varying = {**{key: (key, values) for key, values in axes.items()}, **(tied or {})}
    columns: dict[str, Coded[Any]] = {}
    for key in SPEC_KEYS:
        if key in varying:
            axis, values = varying[key]
            columns[key] = Coded(values=tuple(values), codes=of_axis[axis])
        else:
            columns[key] = Coded(values=(getattr(base, key),), codes=np.zeros(rows, dtype=np.int32))
    return TrialTable(keys=columns, architectures=architectures, rows=rows)


def _coded(values: Sequence[Any]) -> Coded[Any]:
    numbers: dict[Any, int] = {}
    codes: NDArray[Any] = np.fromiter(
        (numbers.setdefault(value, len(numbers)) for value in values), dtype=np.int32, count=len(values)
    )
    return Coded(values=tuple(numbers), codes=codes)


@dataclass(frozen=True, kw_only=True)
class EstimateTable:
    """Estimates of a table of trials, in the order of its rows; sizes in bytes."""

    peak_allocated_bytes: NDArray[Any]
    peak_reserved_bytes: NDArray[Any]
    peak_rule_bytes: NDArray[Any]
    phases: Mapping[Phase, NDArray[Any]]
    """Allocated memory at the largest instant of each phase; 0 if a trial has no such phase."""

    def peak_phase(self, row: int) -> Phase:
        """Return the phase of the peak of allocated memory of one trial."""
        return max(self.phases, key=lambda phase: int(self.phases[phase][row]))

    def estimate(self, row: int) -> Estimate:
        """Return the estimate of one trial, without the categories of its peak."""
        return Estimate(
            peak_allocated_bytes=int(self.peak_allocated_bytes[row]),
            peak_reserved_bytes=int(self.peak_reserved_bytes[row]),
            peak_rule_bytes=int(self.peak_rule_bytes[row]),
            peak_phase=self.peak_phase(row),
        )


class _Trials(SimpleNamespace):
    """Trials of one group, with the attributes of `TrialSpec`: one per key, and what formulas derive from them."""

    @property
    def generation_batch_size(self) -> Count:
        count: Count = self.per_device_train_batch_size * self.steps_per_generation
        return count

    @property
    def mixed_precision(self) -> Flag:
        return either(self.bf16, self.fp16)


@dataclass(frozen=True, kw_only=True)
class _Shapes:
    """Models of one group, with the attributes of `Architecture`."""

    model_type: str
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    context: Count
    tie_word_embeddings: Flag
    qkv_bias: Flag
    qk_norm: Flag
    norms_per_layer: Count
    has_sdpa: Flag
    num_experts: Count
    expert_width: Count
    experts_per_token: Count
    first_layers: tuple[Architecture, ...]
    keys_are_values: bool
    shares_keys: bool
    layer_inputs: LayerInputs | None
    latent: LatentAttention | None
    vision: VisionTower | None
    idle: tuple[IdleTensors, ...]
    shared_expert_width: Count
    attention_dropout: Number
    reward_models: tuple[Architecture, ...]
    scores: int = 0
    linear: None = None
    sliding_window: int | None


_KIND = (
    *("model_type", "keys_are_values", "shares_keys", "layer_inputs", "latent", "vision", "idle", "first_layers"),
    "sliding_window",
)
"""What models of one group have in common: the type decides the linear layers, `first_layers` are of other kinds."""
_OF_A_GROUP = (*_KIND, "scores", "reward_models", "linear")
_SHAPE_NUMBERS = tuple(each.name for each in fields(_Shapes) if each.name not in _OF_A_GROUP)


def estimate_specs(specs: Sequence[TrialSpec], architectures: Mapping[str, Architecture]) -> EstimateTable:
    """Return the estimate of each trial of `specs`, in order.

    Args:
        specs: The trials.
        architectures: The architecture of each model that they name.

    Raises:
        UsageError: There is no closed form of a trial or of a model, as `refuse_without_form` and `refuse_model` say.
    """
    for spec in specs:
        refuse_without_form(spec, architectures[spec.model])
    return estimate_table(table_of(specs, architectures))


def fits_in_arrays(spec: TrialSpec) -> bool:
    """Return whether every size of the closed form of `spec` fits in an array; `estimate` has no such limit."""
    micro_batches = max(spec.steps_per_generation, spec.gradient_accumulation_steps)
    tokens = spec.max_prompt_length + spec.longest
    return spec.training_rows * micro_batches * tokens**2 <= _MOST_IN_ARRAYS


def estimate_table(table: TrialTable) -> EstimateTable:
    """Return the estimate of each trial of `table`, equal to that of `estimate`.

    Raises:
        UsageError: There is no closed form of a trial or of a model, as `refuse_without_form` and `refuse_model` say.
    """
    models = table.keys["model"]
    for code in np.unique(models.codes):
        refuse_model(table.architectures[models.values[code]])
    allocated, reserved, by_rule = _zeros(table), _zeros(table), _zeros(table)
    phases = {phase: _zeros(table) for phase in (*TRIAL_PHASES, Phase.CRITIC, Phase.EVALUATION)}
    for rows, trials, shapes in _groups(table):
        instants = trial_instants(trials, shapes)
        for phase, peak in _phase_peaks(instants).items():
            phases[phase][rows] = peak
            allocated[rows] = np.maximum(allocated[rows], peak)
        reserved[rows] = peak_reserved_bytes(trials, shapes, instants)
        by_rule[rows] = rule_of_thumb(trials, shapes)
    return EstimateTable(
        peak_allocated_bytes=allocated, peak_reserved_bytes=reserved, peak_rule_bytes=by_rule, phases=phases
    )


def _zeros(table: TrialTable) -> NDArray[Any]:
    return np.zeros(table.rows, dtype=np.int64)


def _phase_peaks(instants: tuple[Instant, ...]) -> dict[Phase, Count]:
    peaks: dict[Phase, Count] = {}
    for instant in instants:
        peaks[instant.phase] = larger(peaks.get(instant.phase, 0), instant.total_bytes)
    return peaks


def _groups(table: TrialTable) -> Iterator[tuple[NDArray[Any], TrialKeys, DecoderShape]]:
    """Yield the rows of each group, with their trials and models."""
    kinds = _model_kinds(table)
    number = kinds.codes.astype(np.int64)
    for key in _ONE_VALUE:
        number = number * len(table.keys[key].values) + table.keys[key].codes
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order])) + 1
    for rows in np.split(order, starts):
        if rows.size:
            yield rows, _trials(table, rows), _shapes(table, rows, kinds.values[kinds.codes[rows[0]]])


def _model_kinds(table: TrialTable) -> Coded[tuple[Any, ...]]:
    models = table.keys["model"]
    of_models = [table.architectures[model] for model in models.values]
    found = [tuple(getattr(model, key) for key in _KIND) for model in of_models]
    kinds = tuple(dict.fromkeys(found))
    of_model = np.array([kinds.index(kind) for kind in found])
    return Coded(values=kinds, codes=of_model[models.codes])


def _trials(table: TrialTable, rows: NDArray[Any]) -> TrialKeys:
    chosen: dict[str, Any] = {key: table.keys[key].values[table.keys[key].codes[rows[0]]] for key in _ONE_VALUE}
    for key in _CODED:
        chosen[key] = _present(table.keys[key], rows)
    for key in _NUMBERS:
        chosen[key] = _numbers(table.keys[key].values, table.keys[key].codes[rows])
    return cast(TrialKeys, _Trials(**chosen))


def _shapes(table: TrialTable, rows: NDArray[Any], kind: tuple[Any, ...]) -> DecoderShape:
    models = table.keys["model"]
    codes = models.codes[rows]
    found = [table.architectures[model] for model in models.values]
    columns = {key: _numbers([getattr(model, key) for model in found], codes) for key in _SHAPE_NUMBERS}
    reward_models = found[codes[0]].reward_models
    return _Shapes(**dict(zip(_KIND, kind, strict=True)), reward_models=reward_models, **columns)


def _present(column: Coded[Any], rows: NDArray[Any]) -> Any:  # noqa: ANN401  whatever the key holds
    """Return the part of the column for `rows`, with the values that occur there; a single value as it is."""
    found, codes = np.unique(column.codes[rows], return_inverse=True)
    values = tuple(column.values[code] for code in found)
    return values[0] if len(values) == 1 else Coded(values=values, codes=codes)


def _numbers(values: Any, codes: NDArray[Any]) -> Any:  # noqa: ANN401  numbers or truths
    """Return the numbers of `codes`, as one number if all are equal. None (the key has no meaning) becomes 0."""
    if len(values) == 1 or bool((codes == codes[0]).all()):
        return values[codes[0]]
    return np.array([0 if value is None else value for value in values])[codes]


Estimates = Callable[[Sequence[TrialSpec], Mapping[str, Architecture]], Sequence[Estimate | None]]
"""Returns the estimate of each trial, in order; None where there is no closed form."""


def estimates_of(specs: Sequence[TrialSpec], architectures: Mapping[str, Architecture]) -> list[Estimate | None]:
    """Return the closed form's estimate of each trial, in order; None where there is none.

    Few have reserved memory by a replay, as the answer to one trial has.
    """
    found: list[Estimate | None] = [None] * len(specs)
    places = [place for place, spec in enumerate(specs) if has_form(spec, architectures[spec.model])]
    if len(places) <= MOST_REPLAYED:
        for place in places:
            found[place] = estimate_with_replay(specs[place], architectures[specs[place].model])
        return found
    ordinary = [place for place in places if fits_in_arrays(specs[place])]
    table = estimate_specs([specs[place] for place in ordinary], architectures)
    for row, place in enumerate(ordinary):
        found[place] = table.estimate(row)
    for place in set(places).difference(ordinary):
        found[place] = estimate(specs[place], architectures[specs[place].model])
    return found


def estimates_by_trial(
    specs: Mapping[str, TrialSpec], estimates: Estimates, architecture_of: Callable[[str], Architecture]
) -> dict[str, Estimate]:
    """Return estimates by trial id. A stored trial whose local model no longer exists has none.

    Args:
        specs: The trials by their ids.
        estimates: Returns the estimates of trials, all computed at once.
        architecture_of: Returns the architecture of a model.
    """
    architectures: dict[str, Architecture] = {}
    for model in dict.fromkeys(spec.model for spec in specs.values()):
        with suppress(UsageError):
            architectures[model] = architecture_of(model)
    known = {name: spec for name, spec in specs.items() if spec.model in architectures}
    found = zip(known, estimates(tuple(known.values()), architectures), strict=True)
    return {name: estimate for name, estimate in found if estimate is not None}
