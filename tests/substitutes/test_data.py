"""Data sets that are unavailable are replaced by rows of the columns that are read."""

from pathlib import Path

import pytest
from datasets import Dataset

from profiler.substitutes import SubstituteOptions, substitutes
from profiler.substitutes.columns.columns_read import columns_read
from profiler.substitutes.columns.uses import Column

SMALL = SubstituteOptions(prompt_tokens=5, completion_tokens=7, rows=4)


def load_dataset(*args: object, **kwargs: object) -> object:
    """Import the function where a script does: after the substitutes are on."""
    from datasets import load_dataset as load

    return load(*args, **kwargs)


def test_a_well_known_data_set_has_its_columns_and_splits() -> None:
    with substitutes(SMALL) as replaced:
        found = load_dataset("openai/gsm8k", "main")
    assert set(found) == {"train", "test"}
    row = found["train"][0]
    assert (len(row["question"].split()), len(row["answer"].split())) == (5, 7)
    assert replaced.line() == (
        "Substitutes: data set openai/gsm8k (4 rows of question, answer; prompts of 5 tokens, completions of 7)"
    )


def test_a_split_a_stream_and_any_name_of_a_split() -> None:
    with substitutes(SMALL):
        assert len(load_dataset("trl-lib/tldr", split="train[:1%]")) == 4
        assert next(iter(load_dataset("trl-lib/tldr", split="train", streaming=True)))["prompt"]
        assert len(load_dataset("trl-lib/Capybara")["validation"]) == 4
        train, test = load_dataset("trl-lib/tldr", split=["train[:5%]", "test"])
        assert (len(train), len(test)) == (4, 4)


def test_a_script_may_take_as_many_rows_as_its_own_data_set_has() -> None:
    with substitutes(SMALL):
        rows = load_dataset("trl-lib/Capybara", split="train").map(lambda row: row).select(range(50))
        assert len(rows) == 50
    with pytest.raises(IndexError):
        Dataset.from_dict({"text": ["a"]}).select([1])


def test_a_data_set_that_is_here_is_used(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"own": "text"}\n')
    with substitutes(SMALL) as replaced:
        rows = load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), split="train")
        assert rows.column_names == ["own"]
    assert not replaced


def test_a_missing_folder_and_a_missing_file_are_replaced(tmp_path: Path) -> None:
    from datasets import load_from_disk  # noqa: F401  # not the one that is replaced

    with substitutes(SMALL) as replaced:
        import datasets

        assert datasets.load_from_disk(str(tmp_path / "gone"))["train"].column_names == ["text"]
        assert len(load_dataset("json", data_files=str(tmp_path / "gone.json"), split="train")) == 4
    assert replaced


def test_unknown_columns_are_those_that_the_script_reads(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('rows = load_dataset("mine").map(lambda row: {"prompt": row["riddle"], "a": row["answer"]})\n')
    options = SubstituteOptions(prompt_tokens=5, completion_tokens=7, rows=4, script=script)
    with substitutes(options):
        assert load_dataset("mine")["train"].column_names == ["riddle", "answer"]


def test_columns_can_be_named() -> None:
    options = SubstituteOptions(rows=2, prompt_tokens=5, completion_tokens=7, columns=("question", "messages", "label"))
    with substitutes(options):
        row = load_dataset("mine", split="train")[0]
    assert len(row["question"].split()) == 5
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    assert row["label"] is True


@pytest.mark.parametrize(
    ("source", "columns"),
    [
        ("", {"text": Column.TEXT}),
        ("def f(x):\n    return x['question'] + other['no']", {"question": Column.PROMPT}),
        ("f = lambda x: x.get('solution')", {"solution": Column.COMPLETION}),
        ("f = lambda x: x['prompt'][-1]['content']", {"prompt": Column.ASKED}),
        ("f = lambda x: x['messages'][0]", {"messages": Column.ANSWERED}),
        ("GRPOTrainer(model)", {"prompt": Column.PROMPT}),
        ("def f(x):\n    x['made'] = 1\nSFTTrainer()", {"text": Column.TEXT}),
    ],
)
def test_columns_of_a_source(source: str, columns: dict[str, Column]) -> None:
    assert columns_read(source) == columns
