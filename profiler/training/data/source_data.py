"""Rows of a user's data set, a local file or folder or a hub id, and their tokens; and rows that need none.

The latter have the words of a tokenizer without a download: one token per word. As a program it counts the tokens of
local rows: standard input has a JSON object with `tokenizer`, a folder, and `dataset`, a file or folder; with `rows`,
the most that are read, each row is counted with its completion. Nothing is downloaded, and no code of others runs.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.trial import RowLengths, TrialSpec, completion_lengths

if TYPE_CHECKING:
    from datasets import Dataset

PAD_TOKEN = "<pad>"
EOS_TOKEN = "<eos>"
WORDS = 64
"""Words of the vocabulary."""
_FIRST_WORD = 2

_FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def load_rows(source: str) -> "Dataset":
    """Load the training split of a local file or folder, or of a hub id.

    GSM8K is ``openai/gsm8k`` with its configuration ``main``.
    """
    # Scripts of users, in which the tokenizer or the words alone are used, need not have it.
    from datasets import load_dataset

    path = Path(source)
    if path.is_file() and path.suffix in _FORMATS:
        return load_dataset(_FORMATS[path.suffix], data_files=str(path), split="train")
    if source == "openai/gsm8k":
        return load_dataset(source, "main", split="train")
    return load_dataset(source, split="train")


def missing_column(source: str, rows: "Dataset", *wanted: str) -> UsageError:
    """Return the error of a data set that has none of the `wanted` columns."""
    found = ", ".join(rows.column_names)
    problem = f"needs a column {' or '.join(wanted)}; it has {found}"
    return UsageError([Fault(key="dataset", found=source, problem=problem)])


def sequence_length(spec: TrialSpec) -> int:
    """Return the tokens of the longest row, `max_length`."""
    if spec.max_length is None:
        raise ValueError(f"a trial of the recipe {spec.recipe} has max_length")
    return spec.max_length


def rows_needed(spec: TrialSpec) -> int:
    """Return the rows of all steps, or the pairs, and no less than a reference takes at once before training."""
    trained = spec.per_device_train_batch_size * spec.gradient_accumulation_steps * spec.steps
    return spec.num_processes * max(trained, spec.precompute_ref_batch_size or 0)


Row = TypeVar("Row")


def repeated(spec: TrialSpec, found: Sequence[Row]) -> list[Row]:
    """Return as many rows as the trial needs; the rows of a data set repeat."""
    return [found[index % len(found)] for index in range(rows_needed(spec))]


def synthetic_rows(spec: TrialSpec, lengths: RowLengths | None = None, *, sides: int = 1) -> list[list[list[int]]]:
    """Return the tokens of each side of all rows, [sides, rows, tokens]; two sides are those of a pair.

    Rows differ. In every micro-batch the first row of the first side has the full length, `spec.longest`; `lengths`
    decides the others, unless their lengths are given.
    """
    known: Sequence[int] = (
        completion_lengths(lengths=spec.lengths, rows=spec.training_rows, max_completion_length=spec.longest)
        if lengths is None
        else lengths.completions
    )

    def tokens(row: int, side: int) -> list[int]:
        return [token(row + side + position) for position in range(known[(sides * row + side) % len(known)])]

    return [[tokens(row, side) for row in range(rows_needed(spec))] for side in range(sides)]


def prompt_lengths_of(spec: TrialSpec, lengths: RowLengths | None) -> Sequence[int]:
    """Return the lengths of prompts, which repeat: each the full one, unless they are given."""
    return lengths.prompts if lengths is not None and lengths.prompts else (spec.max_prompt_length,)


def synthetic_prompts(spec: TrialSpec, lengths: RowLengths | None = None) -> list[list[int]]:
    """Return the tokens of all prompts, each of the full length unless their lengths are given."""
    known = prompt_lengths_of(spec, lengths)
    return [[token(row + position) for position in range(known[row % len(known)])] for row in range(rows_needed(spec))]


def word(index: int) -> str:
    """Return one of the 64 words of the vocabulary."""
    return f"w{index % WORDS}"


def token(index: int) -> int:
    """Return the token of `word(index)`."""
    return index % WORDS + _FIRST_WORD


def build_tokenizer() -> Any:
    """Return a word-level tokenizer of 66 tokens: padding, end of sequence and 64 words.

    Ids above its vocabulary, which a random model samples, decode to nothing. Memory does not depend on the words.
    """
    # Scripts of users, in which the words alone are used, need have none of these.
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    vocabulary = {PAD_TOKEN: 0, EOS_TOKEN: 1} | {word(index): token(index) for index in range(WORDS)}
    tokenizer = Tokenizer(WordLevel(vocab=vocabulary, unk_token=PAD_TOKEN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD_TOKEN, eos_token=EOS_TOKEN, padding_side="left"
    )


MOST_ROWS = 10_000
"""Rows that are read, from the first."""
_COLUMNS = ("prompt", "question", "problem", "messages")
_WHOLE, _COMPLETIONS = ("text", "messages"), ("completion", "answer", "response")
_ROWS_AT_ONCE = 1000


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
    found = {"rows": len(lengths), "all_rows": len(rows), "longest": max(lengths)}
    sys.stdout.write(json.dumps(found | {"mean": round(sum(lengths) / len(lengths))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
