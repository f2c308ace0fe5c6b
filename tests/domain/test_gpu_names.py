"""The names that people use for cards."""

import pytest

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.cards.gpu_names import find_gpu, name_card
from profiler.domain.memory import GIB


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("4090", "rtx-4090-24gb"),
        ("RTX 4090", "rtx-4090-24gb"),
        ("rtx4090", "rtx-4090-24gb"),
        ("4060ti", "rtx-4060-ti-16gb"),
        ("h100", "h100-80gb"),
        ("h100-sxm", "h100-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("A100-80GB", "a100-80gb"),
        ("a6000", "rtx-a6000-48gb"),
        ("6000-ada", "rtx-6000-ada-48gb"),
        ("l40", "l40-48gb"),
        ("l40s", "l40s-48gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("Tesla T4", "t4-16gb"),
        ("gb10", "dgx-spark-128gb"),
        ("24gib", "24GiB"),
        ("24.0GiB@8.6", "24GiB@8.6"),
    ],
)
def test_a_card_is_known_by_the_names_that_people_use(text, name):
    assert name_card(text).name == name


@pytest.mark.parametrize("name", KNOWN_GPUS)
def test_every_card_is_known_by_its_name_and_its_title(name):
    assert name_card(name).name == name
    assert name_card(KNOWN_GPUS[name].title).name == name


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("a100", "is one of several cards: a100-40gb, a100-80gb", "Name one of them."),
        ("v100", "is one of several cards: v100-16gb, v100-32gb", "Name one of them."),
        ("mi300x", "is of AMD, and only cards of NVIDIA are known", "See gpu=any."),
        ("Instinct MI250", "is of AMD", "See gpu=any."),
        ("gaudi2", "is of Intel", "See gpu=any."),
        ("24gb", "names no card", "Cards of 24 GB: rtx-4090-24gb, rtx-3090-24gb, a10g-24gb, l4-24gb. For any other"),
        ("7gb", "names no card", "For any other, give its memory as torch reports it: gpu=6.86GiB."),
        ("0GiB", "must have from 1 to 4096 GiB", ""),
        ("24GiB@5.2", "must have a compute capability of at least 7.0", ""),
        ("3080", "must be one of", "Did you mean 'rtx-3080-laptop-16gb'?"),
        ("h100-80g", "must be one of", "Did you mean 'h100-80gb'?"),
        ("rtx-6000", "must be one of", "Did you mean 'rtx-pro-6000-96gb' or 'rtx-6000-ada-48gb'?"),
        ("zzz", "must be one of", ""),
    ],
)
def test_what_names_no_card_says_why(text, problem, hint):
    found = name_card(text)
    assert not found.name
    assert found.problem.startswith(problem) and found.hint.startswith(hint) and bool(hint) == bool(found.hint)


def test_a_card_of_a_stated_size_has_the_chip_of_the_nearest_card():
    card = find_gpu("24GiB")
    assert card is not None
    assert (card.memory_bytes, card.compute_capability, card.name) == (24 * GIB, (8, 9), "24GiB")
    other = find_gpu("24GiB@8.6")
    assert other is not None
    assert (other.compute_capability, other.chip.multiprocessors) == ((8, 6), 82)
    assert find_gpu("24gb") is None and find_gpu(None) is None
    assert find_gpu("h100-80gb") is KNOWN_GPUS["h100-80gb"]
