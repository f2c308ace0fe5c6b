"""`solve gpu`: cards that are rented, with dated prices of public lists, or those of a file."""

import json
from datetime import date

import pytest

import grpo_vram
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.solve.main import main
from profiler.storage.foreign.number_files import PUBLISHED, load_prices

WORDS = ["gpu", "model=qwen2.5-7b", "tuning=lora"]
WITHOUT_A_PRICE = {
    *("a10g-24gb", "h20-96gb", "rtx-4060-ti-16gb", "rtx-4070-12gb", "rtx-5080-16gb", "rtx-6000-ada-48gb", "v100-32gb"),
}
"""Rented cards that none of the lists had."""


def _answer(capsys, *words):
    assert main([*WORDS, *words, "format=json"]) == 0
    return json.loads(capsys.readouterr().out)["answers"][0]


def test_published_prices_are_dated_sourced_and_of_known_cards():
    prices = load_prices(PUBLISHED)
    assert prices.unknown == ()
    rented = {name for name, card in KNOWN_GPUS.items() if card.is_rented}
    assert set(prices.by_card) == rented - WITHOUT_A_PRICE
    for price in prices.by_card.values():
        assert 0.1 < price.per_hour < 10
        assert price.currency == "USD"
        assert price.source
        assert date(2026, 3, 1) <= date.fromisoformat(price.date) <= date(2026, 11, 30)


def test_the_smallest_and_the_cheapest_card_are_named(capsys):
    found = _answer(capsys)
    assert (found["smallest"], found["cheapest"]) == ("l4-24gb", "rtx-3090-24gb")
    by_name = {card["gpu"]: card for card in found["gpus"]}
    assert by_name["rtx-3090-24gb"]["price_per_hour"] == 0.16
    assert "price_per_hour" not in by_name["a10g-24gb"]
    assert main(WORDS) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The cheapest that fits: rtx-3090-24gb, 0.16 USD/h (Akash (akash.network/pricing/gpus), 2026-09-20)" in said
    assert "no price" in said
    card = grpo_vram.smallest_card(model="qwen2.5-7b", tuning="lora")
    assert card.cheapest is not None and card.cheapest.gpu.name == "rtx-3090-24gb"
    assert card.prices["rtx-3090-24gb"].date == "2026-09-20"


@pytest.mark.parametrize(("words", "expected"), [((), False), (("all_cards=true",), True)])
def test_cards_that_nobody_rents_come_when_they_are_asked_for(capsys, words, expected):
    names = {card["gpu"] for card in _answer(capsys, *words)["gpus"]}
    assert ("dgx-spark-128gb" in names, "rtx-3080-laptop-16gb" in names) == (expected, expected)


def test_prices_of_a_file_win(capsys, tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("gpu,price_per_hour,currency\nh100-80gb,1,EUR\nl4-24gb,2,EUR\n")
    assert _answer(capsys, f"prices={path}")["cheapest"] == "h100-80gb"
    path.write_text("gpu,price_per_hour,currency\nt4-16gb,1,EUR\n")
    assert main([*WORDS, f"prices={path}"]) == 0
    assert "None of them has a price." in capsys.readouterr().out
