"""The optimizers: one declaration each, of state, scratch, paging, kernels and words.

The names are those of transformers (`TrainingArguments.optim`). A new optimizer is one member and one declaration here;
`profiler.analytical.optimizers` changes only for a new `State` or `Scratch`, `profiler.simulation.cuda.optimizers` only
for new `Kernels`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class State(StrEnum):
    """What an optimizer keeps per parameter between steps."""

    NONE = "none"
    IN_TYPE = "in the type of the parameter"
    FLOAT32 = "in float32"
    """Whatever the type of the parameter."""
    EIGHT_BIT = "in 8 bits"
    """A byte per value, and float32 scales; float32 values for embeddings and small tensors."""
    ROWS_AND_COLUMNS = "rows and columns"
    """A float32 value per row and per column of a matrix."""


class Scratch(StrEnum):
    """What an optimizer allocates during a step and frees at its end."""

    NONE = "none"
    """Updates are in place."""
    ROOTS_OF_A_GROUP = "roots of a group"
    """A square root per parameter of the larger group (matrices or vectors), in the type of the parameter."""
    DECAYED_GRADIENTS = "decayed gradients"
    """A gradient per parameter of the group with weight decay (matrices), in its type; nothing without decay."""
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
    values: tuple[int, ...] = (1, 1)
    """Values per parameter in each tensor of the state, where it has a tensor per moment."""
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
    PAGED_ADAMW_32BIT = "paged_adamw_32bit"
    ADAFACTOR = "adafactor"
    SGD = "sgd"
    LION_8BIT = "lion_8bit"
    LION_32BIT = "lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    PAGED_LION_32BIT = "paged_lion_32bit"
    ADEMAMIX_8BIT = "ademamix_8bit"
    ADEMAMIX = "ademamix"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    PAGED_ADEMAMIX_32BIT = "paged_ademamix_32bit"
    RMSPROP_8BIT = "rmsprop_bnb_8bit"
    RMSPROP_32BIT = "rmsprop_bnb_32bit"

    @property
    def traits(self) -> OptimizerTraits:
        """The declaration of this optimizer."""
        return _TRAITS[self]


_EACH_VALUE = ("{n} x 4 B", "{n} x 2 x 4 B", "{n} x 3 x 4 B")
_EACH_BYTE = (
    "{n} x 1 B; embeddings and small: 4 B",
    "{n} x 2 x 1 B; embeddings and small: 2 x 4 B",
    "{n} x 3 x 1 B; embeddings and small: 3 x 4 B",
)


def _float32(*values: int) -> OptimizerTraits:
    """Return an optimizer of bitsandbytes with states in float32."""
    text = _EACH_VALUE[sum(values) - 1]
    return OptimizerTraits(kernels=Kernels.BITSANDBYTES, state=State.FLOAT32, values=values, state_text=text)


def _eight_bit(*values: int) -> OptimizerTraits:
    """Return an optimizer of bitsandbytes with states in 8 bits."""
    text = _EACH_BYTE[sum(values) - 1]
    return OptimizerTraits(kernels=Kernels.BITSANDBYTES, state=State.EIGHT_BIT, values=values, state_text=text)


def _paged(traits: OptimizerTraits) -> OptimizerTraits:
    """Return the optimizer with its large states in managed memory."""
    left = "small tensors" if traits.state is State.FLOAT32 else "scales and small tensors"
    return replace(traits, is_paged=True, state_text=f"{left}; states are paged out")


_ONE = (1,)
_TWO = (1, 1)
_FAST_AND_SLOW = (2, 1)
"""AdEMAMix has both first moments in one tensor."""

_TRAITS: Mapping[Optimizer, OptimizerTraits] = {
    Optimizer.ADAMW_TORCH_FUSED: OptimizerTraits(
        kernels=Kernels.TORCH,
        state=State.IN_TYPE,
        step_counter_bytes=4,
        state_text="{n} x 2 x {e} B, and 4 B per tensor",
    ),
    Optimizer.ADAMW_TORCH: OptimizerTraits(
        kernels=Kernels.TORCH,
        state=State.IN_TYPE,
        scratch=Scratch.ROOTS_OF_A_GROUP,
        state_text="{n} x 2 x {e} B",
        scratch_text="a square root of every matrix",
    ),
    Optimizer.ADAMW_8BIT: replace(_eight_bit(*_TWO), label="8-bit", other_names=("adamw_bnb_8bit",)),
    Optimizer.PAGED_ADAMW_8BIT: _paged(_eight_bit(*_TWO)),
    Optimizer.PAGED_ADAMW_32BIT: _paged(_float32(*_TWO)),
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
        scratch=Scratch.DECAYED_GRADIENTS,
        state_text="none",
        scratch_text="a decayed gradient of every matrix",
    ),
    Optimizer.LION_8BIT: _eight_bit(*_ONE),
    Optimizer.LION_32BIT: _float32(*_ONE),
    Optimizer.PAGED_LION_8BIT: _paged(_eight_bit(*_ONE)),
    Optimizer.PAGED_LION_32BIT: _paged(_float32(*_ONE)),
    Optimizer.ADEMAMIX_8BIT: _eight_bit(*_FAST_AND_SLOW),
    Optimizer.ADEMAMIX: _float32(*_FAST_AND_SLOW),
    Optimizer.PAGED_ADEMAMIX_8BIT: _paged(_eight_bit(*_FAST_AND_SLOW)),
    Optimizer.PAGED_ADEMAMIX_32BIT: _paged(_float32(*_FAST_AND_SLOW)),
    Optimizer.RMSPROP_8BIT: _eight_bit(*_ONE),
    Optimizer.RMSPROP_32BIT: replace(_float32(*_ONE), other_names=("rmsprop_bnb",)),
}
"""Source of those of bitsandbytes: `init_state` of `Optimizer1State`, `Optimizer2State` and `AdEMAMix` in 0.50, which
transformers makes in `_get_bitsandbytes_optimizer`."""


_NEAREST: Mapping[str, tuple[Optimizer, str]] = {
    "paged_adamw": (Optimizer.PAGED_ADAMW_32BIT, "which is transformers' name of it"),
    "adamw": (Optimizer.ADAMW_TORCH, "which is transformers' name of torch's AdamW"),
    "adamw_hf": (Optimizer.ADAMW_TORCH, "which keeps the same states"),
    "adamw_torch_8bit": (Optimizer.ADAMW_8BIT, "which also keeps two states in 8 bits"),
    "adamw_torch_4bit": (Optimizer.ADAMW_8BIT, "which keeps two states in 8 bits, and not in 4"),
    "rmsprop": (
        Optimizer.ADAMW_TORCH,
        "which keeps two states of each parameter where {name} keeps one: an upper bound",
    ),
}
"""Other names of transformers' `OptimizerNames` (5.23), and of earlier releases, with the known one to ask with.

Source: `trainer_optimizer.py` in transformers.
"""

HINTS: Mapping[str, str] = {
    name: f"Ask with optim={known}, {why.format(name=name)}." for name, (known, why) in _NEAREST.items()
}
"""What to do about the name of an optimizer that has no formula."""
