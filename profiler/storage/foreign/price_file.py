"""The file with the prices of cards that a user names."""

from importlib.resources import files

from profiler.config.foreign_text import MOST_YAML_BYTES
from profiler.config.prices import Prices, read_prices
from profiler.domain.errors import Fault, UsageError, printable, shortened
from profiler.storage.files.foreign_files import expanded, read_bytes, reason

PRICES = "prices"

PUBLISHED = "published"
"""In place of a file: the prices of public lists that come with the program, with source and date."""

_LONGEST_LIST = 2000
"""Most characters of a list of names."""


def load_prices(path: str) -> Prices:
    """Return the prices in the file `path`, or those of public lists if it is `PUBLISHED`.

    Raises:
        UsageError: The file cannot be read, or has no prices.
    """
    if path == PUBLISHED:
        return read_prices((files("profiler") / "published" / "prices.csv").read_text("utf-8"), name=path)
    try:
        text = read_bytes(expanded(path), most_bytes=MOST_YAML_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise UsageError([Fault(key=PRICES, found=path, problem=f"cannot be read ({reason(error)})")]) from error
    except UnicodeDecodeError as error:
        raise UsageError([Fault(key=PRICES, found=path, problem=f"is not valid CSV ({error})")]) from error
    return read_prices(text, name=path)


def unknown_cards_line(prices: Prices) -> str:
    """Return a line that names the cards of a file of prices that are not known; empty if all are."""
    names = shortened(", ".join(prices.unknown), _LONGEST_LIST)
    return printable(f"Ignored, because no such card is known: {names}.") if prices.unknown else ""
