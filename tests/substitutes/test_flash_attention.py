"""flash-attn for a script that asks for it."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import modeling_flash_attention_utils
from transformers.utils import is_kernels_available

from profiler.domain.errors import UnsupportedTrialError
from profiler.substitutes import SubstituteOptions, substitutes
from profiler.substitutes.flash_attention import (
    all_gather,
    cross_entropy_loss,
    flash_attn_func,
    flash_attn_varlen_func,
    pad_input,
    unpad_input,
)
from profiler.substitutes.options import Replaced
from profiler.substitutes.unavailable_packages import PACKAGES, write_flash_package

ASKS = 'AutoModelForCausalLM.from_pretrained("tiny", attn_implementation="flash_attention_2")'


@pytest.mark.parametrize(
    ("text", "arguments", "provided"),
    [(ASKS, (), True), ("", ("--attn_implementation", "flash_attention_2"), True), ("", (), False)],
)
def test_the_package_is_there_for_a_script_that_names_it(
    text: str, arguments: tuple[str, ...], provided: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    options = SubstituteOptions(script=script, arguments=arguments, has_flash_attn=True)
    with substitutes(options) as replaced:
        assert (importlib.util.find_spec("flash_attn") is not None) is provided
        assert replaced.line() == ""  # named, and not used yet
        if provided:
            assert importlib.metadata.version("flash_attn").startswith("2.")
            found = importlib.import_module("flash_attn.bert_padding")
            assert found.pad_input is pad_input
            _imports_what_transformers_imports()
            assert "package flash-attn" in replaced.line()
    _forget_the_package()
    assert importlib.util.find_spec("flash_attn") is None


def _forget_the_package() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("flash_attn", "kernels")]:
        del sys.modules[name]


def test_each_process_of_a_job_has_it_with_what_verl_imports(tmp_path: Path) -> None:
    write_flash_package(tmp_path / PACKAGES)
    with substitutes(SubstituteOptions(folder=tmp_path)):
        loss = importlib.import_module("flash_attn.ops.triton.cross_entropy").cross_entropy_loss
        assert loss is cross_entropy_loss
        with pytest.raises(ModuleNotFoundError):  # as vLLM asks for its kernels of rotary embeddings
            importlib.import_module("flash_attn.ops.triton.rotary")
        get_kernel = importlib.import_module("kernels").get_kernel
        assert get_kernel("kernels-community/flash-attn3", version=1).flash_attn_varlen_func is flash_attn_varlen_func
        with pytest.raises(FileNotFoundError, match="kernels-community/relu of the hub is not substituted"):
            get_kernel("kernels-community/relu")
        assert not is_kernels_available()
    _forget_the_package()
    assert Replaced.of_job(tmp_path).phrases() == ("package flash-attn (torch's own FlashAttention kernels)",)
    with substitutes(SubstituteOptions(folder=tmp_path / "other")):
        assert importlib.util.find_spec("flash_attn") is None


@pytest.mark.parametrize("inplace", [False, True])
def test_the_loss_takes_three_numbers_per_token_and_a_gradient(inplace: bool) -> None:
    logits, labels = torch.empty(3, 32, requires_grad=True), torch.zeros(3, dtype=torch.long)
    rows = logits * 1
    with BytesMade() as made:
        losses, squares = cross_entropy_loss(rows, labels, inplace_backward=inplace)
    assert made.sizes_bytes == [3 * 4] * 3
    assert (losses.shape, squares.shape, squares.requires_grad) == ((3,), (3,), False)
    received: list[torch.Tensor] = []
    rows.register_hook(received.append)
    losses.sum().backward()
    assert (received[0].data_ptr() == rows.data_ptr()) is inplace
    assert received[0].shape == rows.shape


def test_the_loss_keeps_labels_from_an_even_place() -> None:
    logits, labels = torch.empty(3, 32), torch.zeros(4, dtype=torch.long)
    with BytesMade() as made:
        cross_entropy_loss(logits, labels[1:])
    assert made.sizes_bytes == [4 * 8, *[3 * 4] * 3]
    columns, known = torch.zeros(32, dtype=torch.long), torch.empty(32)
    with BytesMade() as made:
        cross_entropy_loss(logits.t(), columns, known)
    assert made.sizes_bytes == [32 * 3 * 4, *[32 * 4] * 2]
    with pytest.raises(UnsupportedTrialError, match="divided vocabulary"):
        cross_entropy_loss(logits, labels[:3], process_group=object())


class BytesMade(TorchDispatchMode):
    """Sizes of the storages that operations make while active."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes_bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        storage = result.untyped_storage()
        given = {each.untyped_storage()._cdata for each in args if isinstance(each, torch.Tensor)}
        if storage._cdata not in given:
            self.sizes_bytes.append(storage.nbytes())
        return result


def _imports_what_transformers_imports() -> None:
    """Run the import statements of transformers' own loader for flash-attn 2."""
    source = inspect.getsource(modeling_flash_attention_utils._lazy_imports)
    wanted = [
        line.strip() for line in source.splitlines() if re.match(r"\s+from flash_attn(\.bert_padding)? import", line)
    ]
    assert len(wanted) == 2
    for statement in wanted:
        exec(statement, {})


def test_rows_lose_their_padding_and_get_it_back() -> None:
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    states = torch.arange(12.0).view(2, 3, 2) + 1
    tokens, places, starts, longest, lengths = unpad_input(states, mask)
    assert (tokens.shape, starts.tolist(), longest, lengths.tolist()) == ((5, 2), [0, 3, 5], 3, [3, 2])
    assert torch.equal(pad_input(tokens, places, 2, 3), states * mask[..., None])


def test_the_kernel_takes_rows_with_and_without_padding() -> None:
    query, key = (torch.empty(2, 5, heads, 64, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    assert flash_attn_func(query, key, key, causal=True).shape == query.shape
    starts = torch.empty(3, dtype=torch.int32, device="meta")
    query, key = query.flatten(0, 1), key.flatten(0, 1)
    assert flash_attn_varlen_func(query, key, key, starts, starts, 5, 5, causal=True).shape == query.shape


def test_states_of_all_ranks_are_gathered_and_gradients_go_back():
    """With three ranks, of which this is one: [2, 5] becomes [6, 5], and the gradient has the shape of the states."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    try:
        states = torch.ones(2, 5, requires_grad=True)
        gathered = all_gather(states, torch.distributed.group.WORLD)
        gathered.sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert gathered.shape == (6, 5)
    assert states.grad is not None
    assert states.grad.shape == (2, 5)
