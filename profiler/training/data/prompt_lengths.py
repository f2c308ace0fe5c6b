"""Tokens of the rows of a local data set: `python -m profiler.training.data.prompt_lengths`.

Standard input has a JSON object with `tokenizer`, a folder, and `dataset`, a file or folder; with `rows`, the most
that are read, each row is counted with its completion. Nothing is downloaded, no code of others runs, and no model is
loaded.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

MOST_ROWS = 10_000
"""Rows that are read, from the first."""

_COLUMNS = ("prompt", "question", "problem", "messages")


def prompt_lengths(rows: Any, tokenizer: Any) -> list[int]:
    """Return the tokens of each prompt, of which a conversation is written by the tokenizer's chat template.

    Raises:
        ValueError: There are no rows, or they have no column of prompts.
    """
    column = next((name for name in _COLUMNS if name in rows.column_names), None)
    if column is None:
        raise ValueError(f"no column {' or '.join(_COLUMNS)}")
    if not len(rows):
        raise ValueError("no rows")
    return [_tokens(prompt, tokenizer) for prompt in rows[column][:MOST_ROWS]]


_WHOLE = ("text", "messages")
_COMPLETIONS = ("completion", "answer", "response")
_ROWS_AT_ONCE = 1000


def row_lengths(rows: Any, tokenizer: Any, most: int) -> dict[str, list[int]]:
    """Return the tokens of the prompt and of the completion of each row, the first `most` of them.

    Rows without prompts are whole: a text, or a conversation with its last answer.

    Raises:
        ValueError: There are no rows, or they have no column that is known.
    """
    known = rows.column_names
    first = next((name for name in _COLUMNS if name in known and name not in _WHOLE), None)
    second = next((name for name in (*_COMPLETIONS, *(_WHOLE if first is None else ())) if name in known), None)
    if first is None and second is None:
        raise ValueError(f"no column {' or '.join((*_COLUMNS, *_COMPLETIONS, 'text'))}")
    if not len(rows):
        raise ValueError("no rows")
    found: dict[str, list[int]] = {"prompts": [], "completions": []}
    for start in range(0, min(most, len(rows)), _ROWS_AT_ONCE):
        part = rows[start : min(most, start + _ROWS_AT_ONCE)]
        for name, column in (("prompts", first), ("completions", second)):
            found[name] += [_tokens(each, tokenizer, is_whole=name == "completions") for each in part.get(column, ())]
    return found


def _tokens(prompt: Any, tokenizer: Any, *, is_whole: bool = False) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    if is_whole:
        text = tokenizer.apply_chat_template(prompt, tokenize=False)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])
    asked: Sequence[Any] = prompt[:-1] if prompt and prompt[-1].get("role") == "assistant" else prompt
    text = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def main() -> int:
    """Print the numbers of rows, the longest and the mean length of the prompts, or the lengths of all rows."""
    # Tokenizers need no torch, whose import takes most of the time. Both libraries ask once whether there is one.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers import AutoTokenizer

    from profiler.training.data.source_data import load_rows

    del sys.modules["torch"]
    asked = json.loads(sys.stdin.read())
    tokenizer = AutoTokenizer.from_pretrained(asked["tokenizer"], local_files_only=True)
    try:
        rows = load_rows(asked["dataset"])
        if "rows" in asked:
            sys.stdout.write(json.dumps(row_lengths(rows, tokenizer, int(asked["rows"]))))
            return 0
        lengths = prompt_lengths(rows, tokenizer)
    except ValueError as error:
        sys.stdout.write(json.dumps({"problem": str(error)}))
        return 0
    mean = round(sum(lengths) / len(lengths))
    found = {"rows": len(lengths), "all_rows": len(rows), "longest": max(lengths), "mean": mean}
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
