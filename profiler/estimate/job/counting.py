"""What other processes count: parameters of unknown models, and tokens of the rows of data sets."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from profiler.analytical.formulas.models.parameters import parameter_count
from profiler.config.models.architecture import has_other_names, has_other_senses, read_architecture
from profiler.config.models.lookup import checkpoint
from profiler.config.models.refused_models import unlike_llama
from profiler.config.notes import Direction, Note
from profiler.config.options.reading import show
from profiler.constraints.commands import RUN_SCRIPT
from profiler.domain.architectures.architecture import Architecture, ModelCount
from profiler.domain.architectures.families import FAMILIES
from profiler.domain.errors import Fault, UsageError, shortened
from profiler.domain.machines.extras import listed, missing, safe_path_flags, simulation_hint
from profiler.domain.memory import gib_text
from profiler.estimate.command import TOKENIZER
from profiler.storage.files.foreign_files import Kind, expanded, kind_of, open_regular, reason
from profiler.storage.foreign.model_config import is_local
from profiler.storage.foreign.number_files import LENGTHS, MOST_ROWS, LengthFile, length_fault, read_lengths, read_named

TIMEOUT_S = 120
"""Time for the import of torch and transformers and for the model."""

ModelCounter = Callable[[Mapping[str, object]], ModelCount]
"""Returns the counts of the model with this `config.json`; raises `CountingError` where that fails."""

_NO_BASE_MODEL = "trl 1.16 cannot train it, because its class has no base model, of which trl takes the hidden states"
"""`_fused_forward` in trl's `trainer/utils.py`; transformers 5.23 names none of Llama 4 (`base_model_prefix`)."""

_NO_EXPERTS = (
    "trl 1.16 trains it with router_aux_loss_coef=0 only, which no trial has: the loss of its router asks for "
    "num_experts, which transformers' configuration of it lacks"
)
"""`_fused_forward` in trl's `trainer/utils.py`: so for `granitemoe` and its kin, and `phimoe`, of transformers 5.23."""

_AS_LLAMA = "an unknown type, with as many parameters as Llama's layers, whose activations are assumed"

_RANK = 16
"""The rank of the LoRA whose size a refusal states: the default of `lora_rank`."""

_STATES = 2
"""Tensors that AdamW keeps per parameter."""

_BFLOAT16_BYTES, _FLOAT32_BYTES = 2, 4
"""Of weights, and of what peft trains: it makes adapters in float32."""


class CountingError(Exception):
    """A model cannot be counted; the message is the reason."""


class NoModelError(CountingError):
    """transformers has no such model, so no trial can run it."""


def _said_by(module: str, asked: object, *, timeout_s: float, **environment: str) -> Any:  # noqa: ANN401  # JSON
    """Return what a module of this program says about `asked`, in a process of its own: no command imports torch.

    Args:
        module: It reads JSON from standard input, and writes JSON.
        asked: Values of JSON.
        timeout_s: The most time that it has.
        environment: Further variables.

    Raises:
        subprocess.TimeoutExpired: It took longer.
        ValueError, OSError: It said something else, or did not start.
    """
    found = subprocess.run(
        [sys.executable, *safe_path_flags(), "-m", module],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
        check=False,
    )
    return json.loads(found.stdout)


def counted_by_transformers(config: Mapping[str, object]) -> ModelCount:
    """Return the counts of the model that transformers makes of `config`, on torch's meta device.

    Raises:
        NoModelError: There is no such model.
        CountingError: torch or transformers is missing, or the time is up.
    """
    if absent := missing(("torch", "transformers")):
        raise CountingError(f"counting it needs {listed(absent)}, which this installation lacks")
    try:
        said = _said_by("profiler.training.models.parameter_count", config, timeout_s=TIMEOUT_S)
        return ModelCount(**{**said, "linear_names": tuple(said["linear_names"])})
    except subprocess.TimeoutExpired as error:
        raise CountingError(f"transformers did not count it within {TIMEOUT_S} s") from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise NoModelError("transformers makes no language model of its config.json") from error


def read_and_counted(config: Mapping[str, object], *, model: str, count: ModelCounter) -> Architecture:
    """Return the architecture of a `config.json`, counted by transformers where its layers are unknown.

    Raises:
        UsageError: There is no closed form. The sentence says what is known of the model.
    """
    try:
        architecture = read_architecture(config, model=model)
    except UsageError as refused:
        what = _TOWERS if has_other_senses(config) else _NAMES if has_other_names(config) else ""
        if not what or config.get("auto_map"):
            raise
        raise _with_count(config, refused, what, model=model, count=count) from refused
    return checked(architecture, config, model=model, count=count)


def checked(
    architecture: Architecture, config: Mapping[str, object], *, model: str, count: ModelCounter
) -> Architecture:
    """Return `architecture` with known layers, if the closed form counts as many parameters as transformers.

    The answer then says that its activations are assumed. A mixture of experts is returned as it is, if
    transformers has it or cannot say, and trl trains it.

    Raises:
        UsageError: It does not, or the model cannot be counted, or trl cannot train it.
    """
    if architecture.has_known_layers:
        return architecture
    is_mixture = architecture.num_experts > 1
    if config.get("auto_map"):
        raise _refused(model, architecture, "its layers are code of its repository, which is not run", RUN_SCRIPT)
    try:
        counted = count(config)
    except NoModelError as error:
        raise _refused(model, architecture, str(error), RUN_SCRIPT) from error
    except CountingError as error:
        if is_mixture:
            return architecture
        raise _refused(model, architecture, str(error)) from error
    if not counted.has_base_model:
        raise _refused(model, architecture, _NO_BASE_MODEL, RUN_SCRIPT)
    if not counted.names_experts:
        raise _refused(model, architecture, _NO_EXPERTS, RUN_SCRIPT)
    if is_mixture:
        return architecture
    own = int(parameter_count(architecture))
    if counted.parameters != own:
        billions = f"it has {_billions(counted.parameters)}, of which the closed form counts {own / 1e9:.3g}"
        raise _refused(model, architecture, f"{billions}. {_known(counted)}")
    if other := unlike_llama(config, has_sdpa=counted.has_sdpa):
        raise _refused(model, architecture, other)
    kind = shortened(architecture.model_type, 60)
    assumed = f"model_type={kind} ({_AS_LLAMA}: {Direction.EITHER})"
    return replace(architecture, has_known_layers=True, uncounted=(*architecture.uncounted, assumed))


_TOWERS = "has towers for images or sound"
_NAMES = "has layers whose sizes have other names than Llama's"


def _with_count(
    config: Mapping[str, object], refused: UsageError, what: str, *, model: str, count: ModelCounter
) -> UsageError:
    """Return the refusal of a model of which `what` has no formula, with what is known of it."""
    try:
        counted = count(config)
    except CountingError as error:
        (fault,) = refused.faults
        return UsageError([replace(fault, problem=f"{fault.problem} ({error})")])
    kind = shortened(show(config.get("model_type", "unknown")), 60)
    towers = f", {counted.in_towers / 1e9:.3g} of them in the towers" if what == _TOWERS else ""
    problem = (
        f"{what} (model_type {kind}), whose activations have no formula. It has "
        f"{_billions(counted.parameters)}{towers}. {_known(counted)}"
    )
    return UsageError([Fault(key="model", found=model, problem=problem, hint=RUN_SCRIPT)])


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.3g} billion parameters"


def _known(counted: ModelCount) -> str:
    """Return what training needs at least, by the parameters alone, without the full stop of the sentence."""
    weights = counted.parameters * _BFLOAT16_BYTES
    trained = _RANK * counted.lora_per_rank
    adapters = weights + trained * _FLOAT32_BYTES * (2 + _STATES)
    return (
        f"Without any activation, bfloat16 weights take {gib_text(weights)}, with gradients and AdamW's states "
        f"{gib_text(weights * (2 + _STATES))}; with LoRA of rank {_RANK} on its {counted.linear_layers} linear layers "
        f"({shortened(', '.join(counted.linear_names), 160)}), {trained / 1e6:,.1f} million parameters, "
        f"{gib_text(adapters)}"
    )


def _refused(model: str, architecture: Architecture, reason: str, hint: str = "") -> UsageError:
    """Return the refusal of a model; without a hint of its own, a sweep simulates it."""
    kind = shortened(architecture.model_type, 60)
    unknown = "model_type" if kind in FAMILIES else "the unknown model_type"
    layers = architecture.without_form or "layers in an order"
    others = f" with {layers} that no formula has" if kind in FAMILIES else ""
    problem = f"is of {unknown} {kind}{others}, and {reason}"
    return UsageError([Fault(key="model", found=model, problem=problem, hint=hint or simulation_hint())])


"""Time for the imports and for 10,000 prompts."""

KEY = "max_prompt_length"

_COUNTS_TOKENS = "profiler.training.data.source_data"
_TOKENIZER = "tokenizer_config.json"
_TOKENIZER_FILES = (_TOKENIZER, "tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, kw_only=True)
class PromptLengths:
    """Tokens of the prompts of a data set."""

    rows: int
    """That were read."""
    longest: int
    mean: int
    all_rows: int | None = None
    """Of the data set; None if all of them were read."""


class PromptsError(Exception):
    """Prompts cannot be measured; the message is the reason."""


Measure = Callable[[Path, Path], PromptLengths]
"""Returns the lengths by the tokenizer in a folder and the data; raises `PromptsError` where that fails."""


def measured_by_transformers(tokenizer: Path, dataset: Path) -> PromptLengths:
    """Return the lengths of the prompts in `dataset`.

    Raises:
        PromptsError: A library is missing, or the data have no prompts.
    """
    if find_spec("transformers") is None or find_spec("datasets") is None:
        raise PromptsError("transformers and datasets, which would read them, are not installed")
    with tempfile.TemporaryDirectory() as cache:
        asked = {"tokenizer": str(tokenizer), "dataset": str(dataset)}
        try:
            values = _said_by(_COUNTS_TOKENS, asked, timeout_s=TIMEOUT_S, HF_DATASETS_CACHE=cache)
            if "problem" in values:
                raise PromptsError(shortened(str(values["problem"]), 200))
            read, every = int(values["rows"]), int(values["all_rows"])
            return PromptLengths(
                rows=read,
                longest=int(values["longest"]),
                mean=int(values["mean"]),
                all_rows=every if every > read else None,
            )
        except subprocess.TimeoutExpired as error:
            raise PromptsError(f"they were not read within {TIMEOUT_S} s") from error
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise PromptsError("transformers and datasets cannot read them") from error


def remembered_measure(measure: Measure) -> Measure:
    """Return `measure` with each data set measured once, also if that fails."""
    found: dict[tuple[Path, Path], PromptLengths | PromptsError] = {}

    def remembered(tokenizer: Path, dataset: Path) -> PromptLengths:
        key = (tokenizer, dataset)
        if key not in found:
            try:
                found[key] = measure(tokenizer, dataset)
            except PromptsError as error:
                found[key] = error
        result = found[key]
        if isinstance(result, PromptsError):
            raise PromptsError(str(result))
        return result

    return remembered


def prompt_note(model: object, dataset: object, measure: Measure) -> tuple[int, Note] | Note | None:
    """Return the longest prompt and a note that says so, or a note why it is not measured.

    None if the data set or its tokenizer is not on this machine.

    Args:
        model: The model, as the user names it.
        dataset: The data set, as the user names it.
        measure: Measures prompts.
    """
    if not isinstance(model, str) or not isinstance(dataset, str) or not is_local(dataset):
        return None
    tokenizer = _tokenizer_folder(model)
    if tokenizer is None:
        return None
    shown = shortened(dataset, 60)
    try:
        _check_fetched(tokenizer, expanded(dataset))
        found = measure(tokenizer, expanded(dataset))
    except PromptsError as error:
        return Note(key="", text=f"the default, because prompts of {shown} are not measured: {error}")
    read = f"{found.rows:,}" if found.all_rows is None else f"the first {found.rows:,} of {found.all_rows:,}"
    text = f"{KEY}={found.longest} (the longest of {read} prompts of {shown}; {found.mean} on average)"
    return found.longest, Note(key=KEY, text=text)


def _check_fetched(tokenizer: Path, dataset: Path) -> None:
    """Check that the files are there, and not pointers to files that were not fetched.

    Raises:
        PromptsError: One of them cannot be read.
    """
    for path in (dataset, *(tokenizer / name for name in _TOKENIZER_FILES)):
        try:
            if kind_of(path) is Kind.FILE:
                open_regular(path).close()
        except OSError as error:
            raise PromptsError(f"{shortened(path.name, 60)} cannot be read ({reason(error)})") from error


def _tokenizer_folder(model: str) -> Path | None:
    """Return the folder with the tokenizer of a model: a local one, or one of the hub's cache."""
    if is_local(model):
        folder = expanded(model)
        return folder if (folder / _TOKENIZER).is_file() else None
    from profiler.storage.foreign.hub import cached_file  # as in `model_config.py`

    cached = cached_file(checkpoint(model), _TOKENIZER)
    return cached.parent if cached is not None else None


# ---- lengths of rows -------------------------------------------------------------------------------------------------

_ALL_ROWS_TIMEOUT_S = 600


def length_file(path: str, tokenizer: str | None, *, has_prompts: bool) -> LengthFile:
    """Return the lengths of rows that a file has as numbers, or that a tokenizer counts in a data set.

    Args:
        path: The file, or a folder with a data set.
        tokenizer: A folder with a tokenizer; None: the file has numbers.
        has_prompts: Whether a row with prompt and completion counts as both, or as one whole row.

    Raises:
        UsageError: They cannot be read or counted.
    """
    if tokenizer is not None:
        return _counted(path, tokenizer, has_prompts=has_prompts)
    try:
        is_folder = kind_of(expanded(path)) is Kind.FOLDER
    except OSError:
        is_folder = False
    if is_folder:
        problem = "is a folder, and counting the tokens of a data set needs a tokenizer"
        raise length_fault(path, problem, f"Add {TOKENIZER}=FOLDER.")
    return read_lengths(read_named(path, LENGTHS), path, has_prompts=has_prompts)


def _counted(path: str, tokenizer: str, *, has_prompts: bool) -> LengthFile:
    try:
        is_there = kind_of(expanded(tokenizer) / _TOKENIZER) is Kind.FILE
    except OSError:
        is_there = False
    if not is_there:
        raise UsageError([Fault(key=TOKENIZER, found=tokenizer, problem=f"is no folder with a {_TOKENIZER}")])
    asked = {"tokenizer": str(expanded(tokenizer)), "dataset": str(expanded(path)), "rows": MOST_ROWS}
    try:
        found = _said_by(_COUNTS_TOKENS, asked, timeout_s=_ALL_ROWS_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise length_fault(path, f"was not counted within {_ALL_ROWS_TIMEOUT_S} s") from error
    except (ValueError, OSError) as error:
        problem = f"cannot be counted with {TOKENIZER}={shortened(tokenizer, 100)}"
        raise UsageError([Fault(key=TOKENIZER, found=path, problem=problem)]) from error
    if "problem" in found:
        raise length_fault(path, f"cannot be counted: {shortened(str(found['problem']), 200)}")
    return _as_rows(found["prompts"], found["completions"], has_prompts=has_prompts)


def _as_rows(prompts: Sequence[int], completions: Sequence[int], *, has_prompts: bool) -> LengthFile:
    """Return counted lengths; rows that are whole have the prompt and the completion of each row together."""
    kept = LengthFile(
        prompts=tuple(max(1, each) for each in prompts), completions=tuple(max(1, each) for each in completions)
    )
    if has_prompts:
        return kept
    both = zip(kept.prompts, kept.completions, strict=True) if kept.prompts and kept.completions else None
    whole = tuple(map(sum, both)) if both is not None else kept.completions or kept.prompts
    return replace(kept, prompts=(), completions=whole)
