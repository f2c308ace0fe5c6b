"""What the options of the commands have in common."""

from enum import StrEnum

from profiler.config.reading import FieldReader

FORMAT = "format"
"""Key: the format of what a command prints."""


class OutputFormat(StrEnum):
    """Values of `format`. A command has one for people, and JSON for programs."""

    TABLE = "table"
    TEXT = "text"
    JSON = "json"


def read_format(reader: FieldReader, *, for_people: OutputFormat = OutputFormat.TABLE) -> OutputFormat:
    """Return the value of `format`: that of the command for people, or JSON."""
    return OutputFormat(reader.word(FORMAT, (for_people, OutputFormat.JSON)))
