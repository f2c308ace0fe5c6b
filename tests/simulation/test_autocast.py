"""Autocast on the simulated GPU: torch's own lists, and the casts it makes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from emulated.compared import CARDS, recorded, simulated
from emulated.scenarios import AUTOCAST

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Phase
from profiler.simulation.cuda import autocast
from profiler.simulation.session import Simulation

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"

NOT_IN_A_LANGUAGE_MODEL = {
    "_convolution", "_convolution.deprecated", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "frobenius_norm.dim", "nuclear_norm",
    "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss2d",
    "hinge_embedding_loss", "smooth_l1_loss", "huber_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "pdist",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "bilinear", "vdot", "grid_sampler",
    # Called by the simulation's own attention where CUDA would call it.
    "_scaled_dot_product_flash_attention",
}  # fmt: skip


def header_list(macro: str) -> set[str]:
    body = HEADER.read_text().split(f"#define {macro}(_)")[1].split("\n\n")[0]
    entries = re.findall(r"_\(([\w ,]+)\)", body)
    return {".".join(part.strip() for part in entry.split(",")) for entry in entries}


@pytest.mark.parametrize(
    ("macro", "ours"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", autocast.LOWER_PRECISION),
        ("AT_FORALL_FP32", autocast.FLOAT32),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", autocast.FLOAT32_OUTPUT),
        ("AT_FORALL_PROMOTE", autocast.PROMOTE),
    ],
)
def test_the_lists_are_those_of_the_installed_torch(macro: str, ours: tuple[str, ...]) -> None:
    theirs = header_list(macro)
    assert set(ours) <= theirs
    assert theirs - set(ours) <= NOT_IN_A_LANGUAGE_MODEL


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    simulation = Simulation(KNOWN_GPUS["h100-80gb"])
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        yield simulation


def test_products_are_bfloat16_and_norms_float32(simulation: Simulation) -> None:
    hidden = torch.empty((4, 8), device="meta")
    weight = torch.empty((16, 8), device="meta")
    with torch.autocast("meta", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("meta")
        product = torch.nn.functional.linear(hidden, weight)
        assert product.dtype is torch.bfloat16
        assert product.pow(2).dtype is torch.float32
        assert torch.softmax(product, dim=-1).dtype is torch.float32
        assert product.sum().dtype is torch.float32
        assert (product + hidden[:, :1]).dtype is torch.float32
        with torch.autocast("meta", enabled=False):
            assert torch.nn.functional.linear(hidden, weight).dtype is torch.float32
    assert not torch.is_autocast_enabled("meta")
    assert torch.nn.functional.linear(hidden, weight).dtype is torch.float32


def test_a_float32_parameter_is_cast_once_and_its_cast_freed_at_the_end(simulation: Simulation) -> None:
    weight = torch.nn.Parameter(torch.empty((512, 512), device="meta"))
    hidden = torch.empty((512, 512), dtype=torch.bfloat16, device="meta")
    hidden @ hidden  # the first product makes cuBLAS's workspace
    before = len(simulation.recorder.finished().sizes_bytes)
    with torch.autocast("meta", dtype=torch.bfloat16), torch.no_grad():
        outputs = [hidden @ weight for _ in range(3)]
        made = simulation.recorder.finished().sizes_bytes[before:]
    assert len(made) == 4  # one cast, three products
    assert simulation.recorder.finished().events[-1] < 0  # the cast is gone
    del outputs


def test_casts_are_part_of_the_graph(simulation: Simulation) -> None:
    weight = torch.nn.Parameter(torch.empty((16, 8), device="meta"))
    with torch.autocast("meta", dtype=torch.bfloat16):
        loss = torch.nn.functional.linear(torch.empty((4, 8), device="meta"), weight).float().sum()
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32


def test_torch_is_restored() -> None:
    original = torch.autocast
    with Simulation(KNOWN_GPUS["h100-80gb"]).running():
        assert torch.autocast is not original
    assert torch.autocast is original
    hidden, weight = torch.ones((4, 8)), torch.ones((16, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.nn.functional.linear(hidden, weight).dtype is torch.bfloat16
    assert torch.nn.functional.linear(hidden, weight).dtype is torch.float32


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("name", AUTOCAST)
def test_casts_are_made_and_freed_in_torchs_order(gpu: str, name: str) -> None:
    assert simulated(gpu, name, AUTOCAST[name]) == recorded(gpu, name)


def test_casts_are_made_from_the_last_argument_to_the_first_by_hand() -> None:
    weight, inputs, result = 256 * 128 * 2, 60 * 128 * 2, 60 * 256 * 2
    found = simulated("h100-80gb", "autocast, linear", AUTOCAST["autocast, linear"])
    assert found == [weight, inputs, result, -inputs, -weight]


def test_without_a_device_type_the_question_is_about_the_card(simulation: Simulation) -> None:
    # bitsandbytes and peft ask without a device type.
    assert not torch.is_autocast_enabled()
    with torch.autocast("meta", dtype=torch.float16):
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cuda") is torch.float16
    assert not torch.is_autocast_enabled()
