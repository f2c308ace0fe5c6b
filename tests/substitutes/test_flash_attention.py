"""flash-attn for a script that asks for it."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import modeling_flash_attention_utils

from profiler.substitutes import SubstituteOptions, substitutes
from profiler.substitutes.flash_attention import flash_attn_func, flash_attn_varlen_func, pad_input, unpad_input

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
        assert ("package flash-attn" in replaced.line()) is provided
        if provided:
            assert importlib.metadata.version("flash_attn").startswith("2.")
            found = importlib.import_module("flash_attn.bert_padding")
            assert found.pad_input is pad_input
            _imports_what_transformers_imports()
    for name in ("flash_attn", "flash_attn.bert_padding"):
        sys.modules.pop(name, None)
    assert importlib.util.find_spec("flash_attn") is None


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
