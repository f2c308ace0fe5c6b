"""The planted faults, as data."""

from dataclasses import dataclass
from pathlib import Path

from profiler.config.foreign_text import parse_yaml

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).with_name("faults.yaml")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change of one place of the program that a test has to notice."""

    name: str
    file: str
    """Relative to the checkout."""
    text: str
    """Stands exactly once in the file."""
    replacement: str
    test: str
    """The test that fails then, as pytest names it."""


def read_faults() -> tuple[Fault, ...]:
    """Return all faults, in the order of the file."""
    entries = parse_yaml(FAULTS.read_text())
    assert isinstance(entries, list)
    return tuple(Fault(**entry) for entry in entries)


def planted(fault: Fault, whole: str) -> str:
    """Return the content of the file with the fault.

    Raises:
        ValueError: The text does not stand exactly once in the file.
    """
    times = whole.count(fault.text)
    if times != 1:
        raise ValueError(f"{fault.name}: its text stands {times} times in {fault.file}, not once")
    return whole.replace(fault.text, fault.replacement)
