"""A data set that was replaced follows what a script reads from it: known before or not, and however it is read."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiler.substitutes import Replaced, SubstituteOptions, substitutes
from profiler.substitutes.data_sets.known_datasets import find_known, known_names

Make = Callable[[str], SubstituteOptions]


@pytest.fixture
def script(tmp_path: Path) -> Make:
    """Return the options of a script with this text."""

    def make(text: str, *arguments: str) -> SubstituteOptions:
        path = tmp_path / "train.py"
        path.write_text(text)
        return SubstituteOptions(prompt_tokens=5, completion_tokens=7, rows=4, script=path, arguments=arguments)

    return make


def load_dataset(*args: object, **kwargs: object) -> Any:
    """Import the function where a script does: after the substitutes are on."""
    from datasets import load_dataset as load

    return load(*args, **kwargs)


def ran(options: SubstituteOptions) -> tuple[dict[str, Any], Replaced]:
    """Run the script as `profiler.run` does, and return its names."""
    names: dict[str, Any] = {}
    with substitutes(options) as replaced:
        exec(compile(Path(str(options.script)).read_text(), str(options.script), "exec"), names)
    return names, replaced


LOAD = "from datasets import load_dataset\nrows = load_dataset('mine', split='train')\n"

READ = {
    "outside of a function": "found = rows['riddle']\nfound = found[0]\n",
    "in a loop": "for row in rows:\n    found = row['riddle']\n",
    "by number": "found = rows[0]['riddle']\n",
    "several by number": "found = rows[:2]['riddle'][1]\n",
    "named by a constant": "NAME = 'riddle'\nfound = rows[0][NAME]\n",
    "named at run time": "found = rows[0]['rid' + 'dle']\n",
    "named at run time, in a function": "found = rows.map(lambda row: {'made': row['rid' + 'dle']})[0]['made']\n",
    "named at run time, in batches": (
        "found = rows.map(lambda batch: {'made': [each.upper() for each in batch['rid' + 'dle']]}, batched=True)\n"
        "found = found[0]['made']\n"
    ),
    "of a column taken whole, named at run time": "found = rows['rid' + 'dle'][0]\n",
    "given by its column": (
        "found = rows.map(lambda text: {'made': text}, input_columns=['rid' + 'dle'])[0]['made']\n"
    ),
    "by a transform": (
        "found = rows.with_transform(lambda batch: {'made': [each for each in batch['rid' + 'dle']]})[0]['made']\n"
    ),
    "under another name": "found = rows.rename_column('rid' + 'dle', 'made')[0]['made']\n",
    "by arguments that are named": (
        "rows = load_dataset(path='mine', split='train')\n"
        "rows = rows.rename_column(original_column_name='rid' + 'dle', new_column_name='made')\n"
        "rows = rows.select_columns(column_names=['made', 'text']).remove_columns(column_names='text')\n"
        "found = rows.map(function=lambda row: row)[0]['made']\n"
    ),
    "renamed with others": "found = rows.rename_columns({'riddle': 'made', 'other': 'there'})[0]['made']\n",
    "while it is streamed": (
        "rows = load_dataset('mine', split='train', streaming=True)\n"
        "found = next(iter(rows.map(lambda row: {'made': row['rid' + 'dle']})))['made']\n"
    ),
    "by a loader of torch": (
        "from torch.utils.data import DataLoader\n"
        "found = next(iter(DataLoader(rows, batch_size=2, collate_fn=lambda rows: rows[1]['rid' + 'dle'])))\n"
    ),
}


@pytest.mark.parametrize("how", READ)
def test_a_column_is_there_however_it_is_read(how: str, script: Make) -> None:
    names, _ = ran(script(LOAD + READ[how]))
    assert len(names["found"].split()) == 12


def test_a_column_that_was_answered_is_named() -> None:
    options = SubstituteOptions(prompt_tokens=5, completion_tokens=7, rows=4)
    with substitutes(options) as replaced:
        assert load_dataset("mine", split="train")[0]["some_answer"]
    assert "column some_answer (completion, as the script reads it)" in replaced.line()


SHAPES = {
    "(row['it'][0]['role'], row['it'][0]['content'])": lambda it: (
        [each["role"] for each in it] == ["user", "assistant"]
    ),
    "row['it'][2]['content']": lambda it: [each["role"] for each in it] == ["system", "user", "assistant"],
    "[turn['from'] + turn['value'] for turn in row['it']]": lambda it: it[0]["from"] == "human",
    "tokenizer.apply_chat_template(row['it'])": lambda it: it[-1]["role"] == "assistant",
    "row['it']['content'].strip()": lambda it: set(it) == {"content"} and isinstance(it["content"], str),
    "(row['it']['text'][0], row['it']['start'] + 1 > 2)": lambda it: isinstance(it["text"], list),
    "row['it'].convert('RGB')": lambda it: it.size == (512, 512),
    "[image.convert('RGB') for image in row['it']]": lambda it: it[0].size == (512, 512),
    "float(row['it'])": lambda it: isinstance(it, int),
    "row['it'] > 0.5": lambda it: isinstance(it, int),
    "row['it'].split('####')[-1]": lambda it: isinstance(it, str),
    "f'{row[\"it\"]}'": lambda it: isinstance(it, str),
    "json.loads(row['it'])[0]": lambda it: it.startswith("["),
    "[each.lower() for each in row['it']]": lambda it: isinstance(it, list) and isinstance(it[0], str),
    "row['it'][5]['score'] - 1": lambda it: len(it) == 6 and isinstance(it[0]["score"], int),
    "[len(each['steps'][0]) for each in row['it']]": lambda it: isinstance(it[0]["steps"], list),
}


@pytest.mark.parametrize("use", SHAPES)
def test_the_value_fits_its_use(use: str, script: Make) -> None:
    names, _ = ran(script(f"{LOAD}def prepare(row):\n    return {{'made': {use}}}\n"))
    assert SHAPES[use](names["rows"][0]["it"])


BATCHED = {
    "[each.lower() for each in batch['it']]": str,
    "[each['content'] for it in batch['it'] for each in it]": list,
    "[f'{one} {two}' for one, two in zip(batch['it'], batch['other'])]": str,
    "[batch['it'][i].convert('L') for i in range(4)]": object,
}


@pytest.mark.parametrize("use", BATCHED)
def test_a_batch_has_one_value_per_row(use: str, script: Make) -> None:
    text = f"{LOAD}rows.map(lambda batch: {{'made': [str(each) for each in {use}][:4]}}, batched=True)\n"
    names, _ = ran(script(text))
    assert isinstance(names["rows"][0]["it"], BATCHED[use])


@pytest.mark.parametrize(
    "text",
    [
        "def prompt_of(row):\n    return row['riddle']\nrows.map(lambda row: {'prompt': prompt_of(row)})",
        "class Riddles:\n    def __init__(self, data):\n        self.data = data\n"
        "    def __getitem__(self, index):\n        return self.data[index]['riddle']\nRiddles(rows)",
        "kept = [row for row in rows]\nprint(kept[0]['riddle'])",
        "for number, row in enumerate(rows.shuffle(seed=1).select(range(2))):\n    row['riddle']",
    ],
)
def test_rows_are_followed_through_the_script(text: str, script: Make) -> None:
    names, _ = ran(script(LOAD + text))
    assert names["rows"].column_names == ["riddle"]


def test_what_is_no_row_is_no_column(script: Make) -> None:
    text = (
        "def train(config):\n    return config['lr']\ntrain({'lr': 1})\nrows.map(lambda row: {'prompt': row['riddle']})"
    )
    names, _ = ran(script(LOAD + text))
    assert names["rows"].column_names == ["riddle"]


def test_columns_in_files_of_the_project_are_read(script: Make, tmp_path: Path) -> None:
    (tmp_path / "own_rows.py").write_text("def prompt_of(row):\n    return {'prompt': row['riddle']}\n")
    text = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom own_rows import prompt_of\n{LOAD}rows.map(prompt_of)"
    )
    names, _ = ran(script(text))
    assert names["rows"].column_names == ["riddle"]


ARGUMENTS = (
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--image_column', default='picture')\n"
)


@pytest.mark.parametrize(("given", "name"), [((), "picture"), (("--image_column", "shot"), "shot")])
def test_an_argument_names_a_column(given: tuple[str, ...], name: str, script: Callable[..., Any]) -> None:
    text = f"{ARGUMENTS}args = parser.parse_args({list(given)!r})\n{LOAD}"
    use = "images = [each.convert('RGB') for each in rows[args.image_column]]\n"
    names, _ = ran(script(text + use, *given))
    assert names["rows"].column_names == [name]
    assert names["images"][0].mode == "RGB"


def test_a_field_of_a_dataclass_and_a_keyword_name_columns(script: Make) -> None:
    text = (
        "from dataclasses import dataclass, field\n@dataclass\nclass Options:\n"
        "    text_column: str = field(default='story', metadata={})\n"
        "def config(dataset_text_field): pass\nconfig(dataset_text_field='tale')\n"
    )
    names, _ = ran(script(text + LOAD))
    assert names["rows"].column_names == ["story", "tale"]


def test_reward_functions_get_their_columns(script: Make) -> None:
    names, _ = ran(script(f"{LOAD}def right(prompts, completions, answer, weight=1, **kwargs):\n    return answer\n"))
    assert names["rows"].column_names == ["answer"]


def test_labels_are_classes_and_flags_for_kto(script: Make) -> None:
    names, _ = ran(script(f"{LOAD}def f(row):\n    return row['label']\n"))
    assert names["rows"].features["label"].num_classes == 2
    names, _ = ran(script(f"{LOAD}KTOTrainer = 1\nKTOTrainer\n"))
    assert names["rows"][0]["label"] is True


def test_a_split_that_the_script_takes_is_there_after_map(script: Make) -> None:
    text = "from datasets import load_dataset\nrows = load_dataset('mine').map(lambda row: row)\nrows['validation']\n"
    names, _ = ran(script(text))
    assert set(names["rows"]) == {"train", "test", "validation"}


def test_columns_that_are_missing_can_be_removed(script: Make) -> None:
    text = "rows = rows.remove_columns(['id', 'url']).map(lambda row: row, remove_columns=['id', 'text'])\n"
    names, _ = ran(script(LOAD + text))
    assert names["rows"].column_names == []


def test_a_data_set_of_the_user_does_not_answer(script: Make) -> None:
    with substitutes(script("")):
        from datasets import Dataset

        rows = Dataset.from_dict({"text": ["a"]})
        with pytest.raises(KeyError):
            rows[0]["riddle"]
        with pytest.raises(KeyError):
            rows.map(lambda row: {"made": row["riddle"]})
        with pytest.raises(ValueError, match="riddle"):
            rows.remove_columns(["riddle"])


def test_only_a_column_that_is_there_is_in_a_row(script: Make) -> None:
    with substitutes(script("")):
        row = load_dataset("mine", split="train")[0]
        assert "riddle" not in row
        assert row.get("riddle") is None
        assert type(pickle.loads(pickle.dumps(row))) is dict


@pytest.mark.parametrize("batched", [False, True])
def test_get_of_a_library_finds_only_columns_that_are_there(batched: bool, script: Make) -> None:
    """trl asks for `tools` so, and takes what it gets for JSON."""
    with substitutes(script("")):
        rows = load_dataset("mine", split="train")
        made = rows.map(lambda row: {"made": row.get("tools", row["text"])}, batched=batched)
        assert made[0]["made"] == made[0]["text"]


@pytest.mark.parametrize("sizes", [{"test_size": 10}, {"train_size": 6, "test_size": 3}])
def test_a_script_splits_off_as_many_rows_as_it_names(sizes: dict[str, int], script: Make) -> None:
    with substitutes(script("")):
        parts = load_dataset("mine", split="train").train_test_split(**sizes)
    assert {name: len(parts[name]) for name in ("train", "test")} == {"train": sizes.get("train_size", 10)} | {
        "test": sizes["test_size"]
    }


def test_a_script_has_as_many_rows_as_it_samples(script: Make) -> None:
    text = "import random\n" + LOAD + "found = random.sample(rows['_id'], k=9)\n"
    names, replaced = ran(script(text))
    assert len(names["found"]) == 9
    assert "9 rows of" in replaced.line()


def test_texts_that_scripts_take_apart_have_their_marks(script: Make) -> None:
    with substitutes(script("")):
        solved = load_dataset("openai/gsm8k", "main", split="train")[1]["answer"]
        boxed = load_dataset("HuggingFaceH4/MATH-500", split="test")[1]["solution"]
        dialogue = load_dataset("Anthropic/hh-rlhf", split="train")[1]["chosen"]
    assert solved.split("####")[1].strip() == "1"
    assert boxed.endswith("\\boxed{1}")
    assert (len(solved.split()), len(boxed.split())) == (7, 7)
    assert dialogue.rfind("\n\nAssistant:") > dialogue.rfind("\n\nHuman:") >= 0


@pytest.mark.parametrize("name", known_names())
def test_every_known_data_set_can_be_made(name: str, script: Make) -> None:
    path, _, part = name.partition(":")
    with substitutes(script("")):
        found = load_dataset(path, part or None)
    known = find_known(path, part or None)
    assert known is not None
    assert tuple(found) == known.splits
    assert found[known.splits[0]].column_names == list(known.columns)
    assert all(value is not None for value in found[known.splits[0]][0].values())
