"""`docs/keys.md` lists the known cards. After a change of them: `python tests/domain/test_card_list.py`."""

import textwrap
from pathlib import Path

from profiler.domain.cards.gpu import KNOWN_GPUS

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"
START = "`gpu=` names the card: "
END = " The default of a simulation"
WIDTH = 127


def page_with_list() -> str:
    """Return the page with the cards in the order of their rows; the paragraph is wrapped anew."""
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    old, after = rest.split("\n\n", 1)
    flat = old.replace("\n", " ")
    names = ", ".join(f"`{name}`" for name in KNOWN_GPUS)
    paragraph = f"{START}{names}.{flat[flat.index(END) :]}"
    wrapped = textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"{before}{wrapped}\n\n{after}"


def test_the_page_lists_the_cards() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with_list()


if __name__ == "__main__":
    PAGE.write_text(page_with_list(), encoding="utf-8")
