"""Columns and splits of well-known data sets, as their pages on the hub name them.

Columns of identifiers, links and scores that no trainer reads are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.substitutes.rows import Column

_TRAIN_TEST = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class KnownDataset:
    """One data set of the hub."""

    columns: Mapping[str, Column]
    splits: tuple[str, ...] = _TRAIN_TEST


_PREFERENCES = {"chosen": Column.ANSWERED, "rejected": Column.ANSWERED}
_SCORES = {"score_chosen": Column.NUMBER, "score_rejected": Column.NUMBER}
_PROBLEM = {"problem": Column.PROMPT, "solution": Column.COMPLETION}
_TEXT = {"text": Column.TEXT}

_DATASETS: Mapping[str, KnownDataset] = {
    "AI-MO/NuminaMath-CoT": KnownDataset(columns={**_PROBLEM, "messages": Column.ANSWERED}),
    "AI-MO/NuminaMath-TIR": KnownDataset(columns={**_PROBLEM, "messages": Column.ANSWERED}),
    "Anthropic/hh-rlhf": KnownDataset(columns={"chosen": Column.TEXT, "rejected": Column.TEXT}),
    "HuggingFaceFW/fineweb": KnownDataset(columns=_TEXT, splits=("train",)),
    "HuggingFaceFW/fineweb-edu": KnownDataset(columns=_TEXT, splits=("train",)),
    "HuggingFaceH4/ultrachat_200k": KnownDataset(
        columns={"prompt": Column.PROMPT, "messages": Column.ANSWERED},
        splits=("train_sft", "test_sft", "train_gen", "test_gen"),
    ),
    "HuggingFaceH4/ultrafeedback_binarized": KnownDataset(
        columns={"prompt": Column.PROMPT, **_PREFERENCES, "messages": Column.ANSWERED, **_SCORES},
        splits=("train_prefs", "test_prefs", "train_sft", "test_sft", "train_gen", "test_gen"),
    ),
    "Open-Orca/OpenOrca": KnownDataset(
        columns={"system_prompt": Column.PROMPT, "question": Column.PROMPT, "response": Column.COMPLETION},
        splits=("train",),
    ),
    "Salesforce/wikitext": KnownDataset(columns=_TEXT, splits=("train", "validation", "test")),
    "allenai/c4": KnownDataset(columns=_TEXT, splits=("train", "validation")),
    "databricks/databricks-dolly-15k": KnownDataset(
        columns={"instruction": Column.PROMPT, "context": Column.PROMPT, "response": Column.COMPLETION},
        splits=("train",),
    ),
    "openai/gsm8k": KnownDataset(columns={"question": Column.PROMPT, "answer": Column.COMPLETION}),
    "open-r1/OpenR1-Math-220k": KnownDataset(
        columns={**_PROBLEM, "answer": Column.COMPLETION, "messages": Column.ANSWERED}, splits=("train",)
    ),
    "roneneldan/TinyStories": KnownDataset(columns=_TEXT, splits=("train", "validation")),
    "stanfordnlp/imdb": KnownDataset(columns={**_TEXT, "label": Column.NUMBER}),
    "tatsu-lab/alpaca": KnownDataset(
        columns={"instruction": Column.PROMPT, "input": Column.PROMPT, "output": Column.COMPLETION, **_TEXT},
        splits=("train",),
    ),
    "timdettmers/openassistant-guanaco": KnownDataset(columns=_TEXT),
    "trl-lib/Capybara": KnownDataset(columns={"messages": Column.ANSWERED}),
    "trl-lib/DeepMath-103K": KnownDataset(columns={"prompt": Column.ASKED, "solution": Column.COMPLETION}),
    "trl-lib/kto-mix-14k": KnownDataset(
        columns={"prompt": Column.ASKED, "completion": Column.REPLY, "label": Column.FLAG}
    ),
    "trl-lib/tldr": KnownDataset(
        columns={"prompt": Column.PROMPT, "completion": Column.COMPLETION}, splits=("train", "validation", "test")
    ),
    "trl-lib/tldr-preference": KnownDataset(
        columns={"prompt": Column.PROMPT, "chosen": Column.COMPLETION, "rejected": Column.COMPLETION},
        splits=("train", "validation"),
    ),
    "trl-lib/ultrafeedback_binarized": KnownDataset(columns={**_PREFERENCES, **_SCORES}),
    "trl-lib/ultrafeedback-prompt": KnownDataset(columns={"prompt": Column.ASKED}),
}

_SHORT_NAMES = {
    "gsm8k": "openai/gsm8k",
    "imdb": "stanfordnlp/imdb",
    "wikitext": "Salesforce/wikitext",
    "c4": "allenai/c4",
}
"""Names from before the hub had owners."""

_BY_NAME = {name.lower(): dataset for name, dataset in _DATASETS.items()}


def find_known(name: str) -> KnownDataset | None:
    """Return the data set of this name, case ignored; None if it is not known here."""
    return _BY_NAME.get(_SHORT_NAMES.get(name.lower(), name).lower())
