"""Answers for programs: one JSON value, in the form that all commands print."""

import json


def json_text(content: object, *, in_ascii: bool = True, in_one_line: bool = False) -> str:
    """Return values as JSON, with a line break at the end.

    Args:
        content: Mappings, sequences, texts, numbers, booleans and None.
        in_ascii: Whether other characters are escapes.
        in_one_line: Whether one of many values follows another, one per line; else two spaces per level.
    """
    return json.dumps(content, indent=None if in_one_line else 2, ensure_ascii=in_ascii) + "\n"
