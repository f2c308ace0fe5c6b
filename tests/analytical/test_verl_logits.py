"""How many tensors of all logits verl 0.9.1 has at once, counted in torch's own autograd on the CPU.

The operations are those of `FSDPEngineWithLMHead.prepare_model_outputs` and its backward, in this order. flash-attn's
cross-entropy, whose kernels need a GPU, is a function that saves the same tensor and writes its gradient over it, or
next to it.
"""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiler.config.verl.config import read_verl
from profiler.domain.verl import Release

ROWS, LENGTH, VOCABULARY, HIDDEN = 2, 64, 4096, 4
LOGITS_BYTES = ROWS * LENGTH * VOCABULARY * 2
ROLLOUT, MODEL, ACTOR = (f"actor_rollout_ref.{part}" for part in ("rollout", "model", "actor"))


class Live(TorchDispatchMode):
    """The bytes of all storages that operations have made and that are still there, at their largest."""

    def __init__(self):
        super().__init__()
        self.sizes = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, torch.Tensor) and not each.is_nested:
                storage = each.untyped_storage()
                if storage._cdata not in self.sizes:
                    self.sizes[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
                self.peak = max(self.peak, sum(self.sizes.values()))
        return found


class CrossEntropy(torch.autograd.Function):
    """Saves its logits as they are; the gradient is written over them, or is a tensor of its own."""

    @staticmethod
    def forward(context, logits, writes_over):
        context.save_for_backward(logits)
        context.writes_over = writes_over
        return logits[:, 0].float()

    @staticmethod
    def backward(context, _):
        (logits,) = context.saved_tensors
        return (logits if context.writes_over else torch.empty_like(logits)).fill_(0.1), None


class Compiled(torch.autograd.Function):
    """An entropy by torch.compile: it saves the logits, and its backward makes one more tensor of them."""

    @staticmethod
    def forward(context, logits):
        context.save_for_backward(logits)
        return logits[:, 0].float()

    @staticmethod
    def backward(context, _):
        (logits,) = context.saved_tensors
        return torch.full_like(logits, 0.1)


def loss(hidden, head, *, removes, temperature, has_entropy):
    output = hidden.view(1, -1, HIDDEN).matmul(head.t()) if removes else hidden.matmul(head.t())
    # The output of the model is there until the loss is computed.
    logits = output.squeeze(0) if removes else output
    if temperature != 1:
        shape = (ROWS * LENGTH, 1) if removes else (ROWS, 1, 1)
        logits = logits / torch.full(shape, temperature, dtype=torch.bfloat16)
    entropy = Compiled.apply(logits) if has_entropy else None
    if not removes:
        lengths = torch.full((ROWS,), LENGTH)
        narrowed = torch.nested.narrow(logits, 1, torch.zeros_like(lengths), lengths, layout=torch.jagged)
        logits = torch.cat(list(narrowed.unbind()))
    found = CrossEntropy.apply(logits, not has_entropy).sum()
    return found if entropy is None else found - 0.01 * entropy.sum()


def tensors(*, trains, **how):
    """How many tensors of all logits there are at the peak of a pass."""
    hidden = torch.randn(ROWS, LENGTH, HIDDEN, dtype=torch.bfloat16, requires_grad=trains)
    head = torch.randn(VOCABULARY, HIDDEN, dtype=torch.bfloat16, requires_grad=trains)
    with Live() as live:
        found = loss(hidden, head, **how)
        if trains:
            found.backward()
    return int(live.peak / LOGITS_BYTES)


@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize("temperature", [1, 0.6])
def test_tensors_of_logits_are_those_of_autograd(removes, temperature):
    values = {
        f"{MODEL}.path": "qwen3-8b",
        f"{MODEL}.use_remove_padding": removes,
        f"{ROLLOUT}.temperature": temperature,
    }
    workers = read_verl(values, release=Release.V0_9_1).job.workers
    how = {"removes": removes, "temperature": temperature, "has_entropy": False}
    assert tensors(trains=True, **how) == workers.logits_in_update
    assert tensors(trains=False, **how) == workers.logits_in_scoring + workers.repacks_logits


@pytest.mark.parametrize("temperature", [1, 0.6])
def test_a_compiled_entropy_has_one_more(temperature):
    values = {f"{MODEL}.path": "qwen3-8b", f"{ROLLOUT}.temperature": temperature, f"{ACTOR}.calculate_entropy": True}
    workers = read_verl(values, release=Release.V0_9_1).job.workers
    assert tensors(trains=True, removes=True, temperature=temperature, has_entropy=True) == workers.logits_in_update + 1
