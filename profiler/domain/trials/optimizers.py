"""The optimizers: one declaration each, of state, scratch, paging, kernels and words.

The names are those of transformers (`TrainingArguments.optim`). A new optimizer is one member and one declaration here;
`profiler.analytical.optimizers` changes only for a new `State` or `Scratch`, `profiler.simulation.cuda.optimizers` only
for new `Kernels`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What an optimizer keeps per parameter between steps."""

    NONE = "none"
    TWO_STATES = "two states"
    """Two values in the type of the parameter."""
    EIGHT_BIT_STATES = "two states in 8 bits"
    """Two bytes, and float32 scales; float32 values for embeddings and small tensors."""
    ROWS_AND_COLUMNS = "rows and columns"
    """A float32 value per row and per column of a matrix."""


class Scratch(StrEnum):
    """What an optimizer allocates during a step and frees at its end."""

    NONE = "none"
    """Updates are in place."""
    ROOTS_OF_A_GROUP = "roots of a group"
    """A square root per parameter of the larger group (matrices or vectors), in the type of the parameter."""
    COPIES_OF_THE_LARGEST = "copies of the largest"
    """Float32 copies of one parameter at a time."""


class Kernels(StrEnum):
    """The library whose kernels update the parameters."""

    TORCH = "torch"
    """torch's own optimizers, and optimizers of transformers that call torch's operations."""
    BITSANDBYTES = "bitsandbytes"


@dataclass(frozen=True, kw_only=True)
class OptimizerTraits:
    """All that the profiler knows about one optimizer."""

    kernels: Kernels
    state: State
    scratch: Scratch = Scratch.NONE
    step_counter_bytes: int = 0
    """Bytes of a step counter per tensor on the GPU."""
    is_paged: bool = False
    """Whether large states are in CUDA managed memory, which torch's allocator does not see."""
    label: str = ""
    """Word for the method's name in tables; without one, tables say `optim=...`."""
    other_names: tuple[str, ...] = ()
    """Other names of transformers for the same optimizer."""
    state_text: str
    """Short form of the state's size; ``{n}`` is the number of trained parameters, ``{e}`` the bytes of one."""
    scratch_text: str = ""
    """Short form of the scratch; empty where there is none."""


class Optimizer(StrEnum):
    """Values of `optim`."""

    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_TORCH = "adamw_torch"
    ADAMW_8BIT = "adamw_8bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    ADAFACTOR = "adafactor"
    SGD = "sgd"

    @property
    def traits(self) -> OptimizerTraits:
        """The declaration of this optimizer."""
        return _TRAITS[self]


_TRAITS: Mapping[Optimizer, OptimizerTraits] = {
    Optimizer.ADAMW_TORCH_FUSED: OptimizerTraits(
        kernels=Kernels.TORCH,
        state=State.TWO_STATES,
        step_counter_bytes=4,
        state_text="{n} x 2 x {e} B, and 4 B per tensor",
    ),
    Optimizer.ADAMW_TORCH: OptimizerTraits(
        kernels=Kernels.TORCH,
        state=State.TWO_STATES,
        scratch=Scratch.ROOTS_OF_A_GROUP,
        state_text="{n} x 2 x {e} B",
        scratch_text="a square root of every matrix",
    ),
    Optimizer.ADAMW_8BIT: OptimizerTraits(
        kernels=Kernels.BITSANDBYTES,
        state=State.EIGHT_BIT_STATES,
        label="8-bit",
        other_names=("adamw_bnb_8bit",),
        state_text="{n} x 2 x 1 B; embeddings and small: 2 x 4 B",
    ),
    Optimizer.PAGED_ADAMW_8BIT: OptimizerTraits(
        kernels=Kernels.BITSANDBYTES,
        state=State.EIGHT_BIT_STATES,
        is_paged=True,
        state_text="scales and small tensors; states are paged out",
    ),
    Optimizer.ADAFACTOR: OptimizerTraits(
        kernels=Kernels.TORCH,
        state=State.ROWS_AND_COLUMNS,
        scratch=Scratch.COPIES_OF_THE_LARGEST,
        state_text="(rows + columns) of each matrix x 4 B",
        scratch_text="float32 copies of the largest",
    ),
    Optimizer.SGD: OptimizerTraits(
        kernels=Kernels.TORCH,
        state=State.NONE,  # transformers asks for no momentum
        state_text="none",
    ),
}


_OF_TWO = "which keeps two states of each parameter where {name} keeps one: an upper bound"
_PAGES = (
    "which pages the same tensors out, those of 100,000 values or more; of smaller ones it keeps states in 8 bits "
    "where {name} keeps 32"
)

_NEAREST: Mapping[str, tuple[Optimizer, str]] = {
    "paged_adamw_32bit": (Optimizer.PAGED_ADAMW_8BIT, _PAGES),
    "paged_adamw": (Optimizer.PAGED_ADAMW_8BIT, _PAGES),
    "adamw": (Optimizer.ADAMW_TORCH, "which is transformers' name of torch's AdamW"),
    "adamw_hf": (Optimizer.ADAMW_TORCH, "which keeps the same states"),
    "adamw_torch_8bit": (Optimizer.ADAMW_8BIT, "which also keeps two states in 8 bits"),
    "adamw_torch_4bit": (Optimizer.ADAMW_8BIT, "which keeps two states in 8 bits, and not in 4"),
    "lion_8bit": (Optimizer.ADAMW_8BIT, _OF_TWO),
    "lion_32bit": (Optimizer.ADAMW_TORCH_FUSED, _OF_TWO),
    "paged_lion_8bit": (Optimizer.PAGED_ADAMW_8BIT, _OF_TWO),
    "paged_lion_32bit": (Optimizer.PAGED_ADAMW_8BIT, _PAGES),
    "rmsprop": (Optimizer.ADAMW_TORCH, _OF_TWO),
    "rmsprop_bnb": (Optimizer.ADAMW_TORCH_FUSED, _OF_TWO),
    "rmsprop_bnb_8bit": (Optimizer.ADAMW_8BIT, _OF_TWO),
    "rmsprop_bnb_32bit": (Optimizer.ADAMW_TORCH_FUSED, _OF_TWO),
}
"""Other names of transformers' `OptimizerNames` (5.23), and of earlier releases, with the known one to ask with.

Source: `trainer_optimizer.py` in transformers, and `Optimizer1State` and `Optimizer2State` in bitsandbytes 0.50. One
float32 value is at most two in the type of the parameter, which has 2 bytes or more.
"""

HINTS: Mapping[str, str] = {
    name: f"Ask with optim={known}, {why.format(name=name)}." for name, (known, why) in _NEAREST.items()
}
"""What to do about the name of an optimizer that has no formula."""
