"""The tokens that a model was made for, and the images of a prompt.

The tokens that a model was made for, rows that are longer, and what else of a model an estimate warns of.

Rotary positions are computed for any token, so transformers trains and generates beyond `max_position_embeddings`
without a word; a test runs every known model type there. A table of learned positions ends with it, and vLLM refuses to
start with longer sequences.

The images of a prompt: how many, and how large, where a user leaves that out.

`max_prompt_length` is the length of the whole prompt, with the tokens of its images. So did trl count while it cut
prompts: it kept the tokens of images (`truncate_with_protected_tokens`, trl 0.22).
"""

from collections.abc import Mapping
from dataclasses import replace

from profiler.config.notes import Direction
from profiler.config.options.reading import show
from profiler.domain.architectures.architecture import Architecture, VisionTower
from profiler.domain.architectures.families import states_whole_context
from profiler.domain.errors import Fault
from profiler.domain.trials.trial import TrialSpec, key_named

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
    """Return the warnings about the model of a trial: what is not counted, and rows beyond its context."""
    return tuple(filter(None, (line(spec, architecture) for line in (context_line, uncounted_line, recurrent_line))))


def recurrent_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Return by which of two versions recurrent layers are computed, or nothing."""
    if not architecture.has_optional_kernels:
        return ""
    packages = "flash-linear-attention, causal-conv1d and mamba-ssm"
    without = f"its recurrent layers run in PyTorch, as transformers runs them without {packages}"
    return f"{spec.model}: {without}. With these installed, a GPU needs another amount of memory."


def uncounted_line(spec: TrialSpec, architecture: Architecture) -> str:
    """Return the values of the model's `config.json` that change memory and are not counted, or nothing."""
    found = (*architecture.uncounted, *_beyond_window(spec, architecture))
    return f"Not counted, in the config.json of {spec.model}: {'; '.join(found)}." if found else ""


def _beyond_window(spec: TrialSpec, architecture: Architecture) -> tuple[str, ...]:
    """Return a text about rows that are longer than sliding layers see."""
    window = architecture.sliding_window
    if window is None or spec.row_tokens <= window:
        return ()
    what = f"rows of {spec.row_tokens:,} tokens have a mask in some layers, counted in all, and a shorter cache"
    return (f"sliding_window={window} ({what}: {Direction.HIGH})",)


IMAGE_KEYS = ("images_per_prompt", "min_pixels", "max_pixels")
_PROMPT = "max_prompt_length"


def with_images(
    spec: TrialSpec, architecture: Architecture, given: Mapping[str, object]
) -> tuple[TrialSpec, list[Fault]]:
    """Return the specification with its images, and the faults of their keys.

    By hand, Qwen2.5-VL with nothing given: one image of 12,845,056 / 784 = 16,384 tokens, and a prompt of 16,384 + 256.
    With max_prompt_length=2048: an image of 2,048 tokens, so 1,605,632 pixels.

    Args:
        spec: The specification, without what depends on the model.
        architecture: Its model.
        given: What the user wrote.
    """
    tower = architecture.vision
    if not spec.recipe.facts.has_prompts or (tower is not None and not spec.recipe.facts.has_rollout):
        return spec, []
    if tower is None:
        stated = [key for key in IMAGE_KEYS if given.get(key) is not None]
        spec = replace(spec, images_per_prompt=None, min_pixels=None, max_pixels=None)
        return spec, [_without_tower(spec, architecture, key, given[key]) for key in stated]
    images, has_length = spec.images_per_prompt or 1, given.get(_PROMPT) is not None
    most = spec.max_pixels
    if most is None:
        most = tower.max_pixels
        if has_length:
            most = min(most, max(spec.max_prompt_length // images, 1) * tower.pixels_per_token)
    fewest = min(tower.min_pixels, most) if spec.min_pixels is None else spec.min_pixels
    tokens = images * image_tokens(tower, most)
    text = spec.max_prompt_length if has_length else tokens + _default_text()
    found = replace(spec, images_per_prompt=images, min_pixels=fewest, max_pixels=most, max_prompt_length=text)
    return found, _faults(found, tower, tokens)


def image_tokens(tower: VisionTower, pixels: int) -> int:
    """Return the tokens of an image, at most. By hand, 401,408 pixels, 784 per token: 512."""
    return pixels // tower.pixels_per_token


def images_line(spec: TrialSpec, architecture: Architecture, *, with_prompt: bool = True) -> str:
    """Return what an estimate assumes about the images of a prompt; nothing for a model of text alone."""
    tower = architecture.vision
    if tower is None or spec.images_per_prompt is None or spec.max_pixels is None:
        return ""
    each, images = image_tokens(tower, spec.max_pixels), spec.images_per_prompt
    count = "1 image" if images == 1 else f"{images} images"
    source = ", the processor's default" if spec.max_pixels == tower.max_pixels else ""
    length = f", in prompts of {spec.max_prompt_length:,} tokens" if with_prompt else ""
    return (
        f"{spec.model}: {count} per prompt{length}; each has {each:,} tokens, made of "
        f"{each * tower.patches_per_token:,} patches (max_pixels={spec.max_pixels}{source})."
    )


def _default_text() -> int:
    default = key_named(_PROMPT).default
    assert isinstance(default, int)
    return default


def _without_tower(spec: TrialSpec, architecture: Architecture, key: str, value: object) -> Fault:
    lacks = "is counted for rows of text alone" if architecture.idle else "has no vision tower"
    problem = f"has no meaning with model={spec.model}, which {lacks}"
    return Fault(key=key, found=show(value), problem=problem, hint="Leave it out.")


def _faults(spec: TrialSpec, tower: VisionTower, tokens: int) -> list[Fault]:
    assert spec.max_pixels is not None and spec.min_pixels is not None
    unit, found = tower.pixels_per_token, []
    if spec.max_pixels < unit:
        problem = f"is less than one token of {spec.model}, which has {unit} pixels"
        found.append(Fault(key="max_pixels", found=str(spec.max_pixels), problem=problem))
    elif tokens > spec.max_prompt_length:
        problem = f"is less than the {tokens:,} tokens of the images in a prompt, which it includes"
        found.append(
            Fault(
                key=_PROMPT,
                found=str(spec.max_prompt_length),
                problem=problem,
                hint=f"Use a smaller max_pixels, or {_PROMPT}={tokens + _default_text()}.",
            )
        )
    if spec.min_pixels > spec.max_pixels:
        problem = f"is more than max_pixels={spec.max_pixels}"
        found.append(Fault(key="min_pixels", found=str(spec.min_pixels), problem=problem))
    return found
