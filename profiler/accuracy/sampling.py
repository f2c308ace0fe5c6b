"""A seeded sampler of trials over all that decides memory; what it draws is written down before it is looked at."""

import json
import random
from collections.abc import Mapping, Sequence

from profiler.config.identity import spec_from_mapping, spec_to_mapping
from profiler.config.model_lookup import builtin_architecture
from profiler.config.specification import parse_point
from profiler.domain.architecture import Architecture
from profiler.domain.builtin_models import BUILTIN_MODELS
from profiler.domain.errors import Fault, UsageError
from profiler.domain.optimizers import Optimizer
from profiler.domain.trial import Attention, Backend, Dtype, Lengths, Logprobs, TrialSpec, Tuning

MODELS = tuple(name for name in BUILTIN_MODELS if name != "tiny")

AXES: Mapping[str, Sequence[object]] = {
    "model": MODELS,
    "gpu": ("h200-141gb", "h200-141gb", "b200-180gb", "a100-80gb"),
    "tuning": (*Tuning,),
    "lora_rank": (4, 8, 16, 32, 64, 128),
    "lora_target_modules": (
        "all-linear",
        "all-linear",
        ("q_proj", "v_proj"),
        ("q_proj", "k_proj", "o_proj", "up_proj", "down_proj"),
        ("gate_proj", "up_proj", "down_proj"),
    ),
    "optim": (*Optimizer,),
    "num_generations": (2, 4, 8, 16),
    "max_prompt_length": (32, 64, 128, 256, 512, 1024),
    "max_completion_length": (64, 128, 200, 256, 512, 786, 1024, 1536, 2048),
    "lengths": (*Lengths,),
    "per_device_train_batch_size": (1, 2, 4, 8),
    "gradient_accumulation_steps": (1, 2, 4),
    "steps_per_generation": (None, None, None, 1, 2, 4),
    "gradient_checkpointing": (True, False),
    "beta": (0.0, 0.0, 0.04),
    "attn_implementation": (
        Attention.SDPA,
        Attention.SDPA,
        Attention.SDPA,
        Attention.FLASH_ATTENTION_2,
        Attention.EAGER,
    ),
    "dtype": (Dtype.BFLOAT16, Dtype.BFLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32),
    "bf16": (True, True, True, False),
    "logprobs": (*Logprobs,),
}
"""What is drawn from, each key by itself and every value as likely as the next; one that is twice there is twice as
likely. Cards are large, so that few trials end before their last phase."""

_FIXED: Mapping[str, object] = {"backend": Backend.SIMULATED.value, "steps": 2, "rollout": "generate"}
"""The second step already has the optimizer's state, and later ones need no more."""


def draw(count: int, *, seed: int) -> tuple[TrialSpec, ...]:
    """`count` trials, all different; the same for the same seed, and the first ones the same whatever the count.

    A draw that no rule of trl allows (a group that is not whole, rows longer than the context) is drawn again.
    """
    chance = random.Random(seed)
    drawn: dict[TrialSpec, None] = {}
    while len(drawn) < count:
        point = {key: _plain(chance.choice(values)) for key, values in AXES.items()}
        try:
            drawn[parse_point({**_FIXED, **point}, architecture_of=architecture_of)] = None
        except UsageError:
            continue
    return tuple(drawn)


def architecture_of(model: str) -> Architecture:
    """The architecture of a built-in model.

    Raises:
        UsageError: There is none of that name.
    """
    found = builtin_architecture(model)
    if found is None:
        raise UsageError([Fault(key="model", found=model, allowed="must be a built-in model")])
    return found


def drawn_text(specs: Sequence[TrialSpec], *, seed: int) -> str:
    """What was drawn as lines of JSON: the seed first, then a trial each."""
    lines = [json.dumps({"seed": seed, "count": len(specs)})]
    return "\n".join([*lines, *(json.dumps(spec_to_mapping(spec)) for spec in specs)]) + "\n"


def read_drawn(text: str) -> tuple[TrialSpec, ...]:
    """The trials that `drawn_text` wrote.

    Raises:
        ValueError: It is not of that form.
    """
    _, *lines = text.splitlines()
    return tuple(spec_from_mapping(json.loads(line)) for line in lines)


def _plain(value: object) -> object:
    """As a user would have typed it."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value
