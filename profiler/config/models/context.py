"""The tokens that a model was made for, rows that are longer, and what else of a model an estimate warns of.

Rotary positions are computed for any token, so transformers trains and generates beyond `max_position_embeddings`
without a word; a test runs every known model type there. A table of learned positions ends with it, and vLLM refuses to
start with longer sequences.
"""

from collections.abc import Mapping

from profiler.config.models.uncounted import Direction
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.architectures.families import states_whole_context
from profiler.domain.trials.trial import TrialSpec

_ROTARY_FIELDS = ("rope_parameters", "rope_scaling", "rope_theta")
"""Fields of a `config.json` by which a model has rotary positions."""

_UNSCALED = ("su", "longrope", "llama3")
"""Types of rotary positions whose `max_position_embeddings` includes the scaling."""


def scaled_context(config: Mapping[str, object], *, positions: int) -> int | None:
    """Return the tokens that a model with scaled positions was made for; None where these are its positions.

    By hand, Qwen2.5 with ``{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}``: 131,072.

    Args:
        config: The fields of a decoder.
        positions: Its `max_position_embeddings`.

    Source: `get_and_verify_max_len` in vLLM 0.19's `config/model.py`.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, Mapping) or states_whole_context(str(config.get("model_type", ""))):
        return None
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if kind in _UNSCALED or not isinstance(factor, int | float) or isinstance(factor, bool) or not factor > 0:
        return None
    original = scaling.get("original_max_position_embeddings")
    start = original if kind == "yarn" and isinstance(original, int) and original > 0 else positions
    return int(start * min(factor, _MOST_FACTOR))


_MOST_FACTOR = 1e6


def has_rotary_positions(config: Mapping[str, object]) -> bool:
    """Return whether a `config.json` states rotary positions."""
    return any(config.get(name) not in (None, {}) for name in _ROTARY_FIELDS)


def is_beyond_context(spec: TrialSpec, architecture: Architecture) -> bool:
    """Return whether rows are longer than the model was made for."""
    return spec.row_tokens > architecture.context


def context_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Return a warning about rows that are longer than the model was made for, or nothing."""
    if not is_beyond_context(spec, architecture):
        return ""
    return (
        f"{spec.model}: a row has {spec.row_tokens:,} tokens, and the model was made for {architecture.context:,}. "
        f"{_engine_end(spec, architecture)}To train it well, scale its positions: rope_scaling in its config.json "
        f"(rope_parameters in files of transformers 5), such as {_example(spec, architecture)}."
    )


def _engine_end(spec: TrialSpec, architecture: Architecture) -> str:
    """Return what vLLM does with such rows."""
    if not spec.use_vllm:
        return ""
    return f"vLLM ends responses at {architecture.context:,}, so the estimate is that of rows that never come. "


def _example(spec: TrialSpec, architecture: Architecture) -> str:
    """Return the scaling that reaches the row, by the next whole factor."""
    positions = architecture.max_position_embeddings
    factor = float(-(-spec.row_tokens // positions))
    return f'{{"rope_type": "yarn", "factor": {factor}, "original_max_position_embeddings": {positions}}}'


def model_lines(spec: TrialSpec, architecture: Architecture) -> tuple[str, ...]:
    """Return the warnings about the model of a trial: rows beyond its context, and values that are not counted."""
    return tuple(line for line in (context_line(spec, architecture), uncounted_line(spec, architecture)) if line)


def uncounted_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Return the values of the model's `config.json` that change memory and are not counted, or nothing."""
    found = (*architecture.uncounted, *_beyond_window(spec, architecture))
    return f"Not counted, in the config.json of {spec.model}: {'; '.join(found)}." if found else ""


def _beyond_window(spec: TrialSpec, architecture: Architecture) -> tuple[str, ...]:
    """Return a text about rows that are longer than sliding layers see."""
    window = architecture.sliding_window
    if window is None or spec.row_tokens <= window:
        return ()
    what = f"rows of {spec.row_tokens:,} tokens have a mask there, and a shorter cache"
    return (f"sliding_window={window} ({what}: {Direction.EITHER})",)
