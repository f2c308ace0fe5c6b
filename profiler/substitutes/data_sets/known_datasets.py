"""Columns and splits of well-known data sets, as their pages on the hub name them, and images of torchvision's.

Columns of identifiers, links and scores that no trainer reads are left out. Data sets of torchvision that are
unavailable are replaced by grey images of the same size.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from profiler.seams.patching import Patch
from profiler.substitutes.columns.uses import Classes, Column, ListOf, Record, Shape, numbered_classes, record
from profiler.substitutes.options import Replaced, SubstituteOptions

_TRAIN_TEST = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class KnownDataset:
    """One data set of the hub."""

    columns: Mapping[str, Shape]
    splits: tuple[str, ...] = _TRAIN_TEST


_SHAPES: Mapping[str, Shape] = {
    "prompt": Column.PROMPT,
    "completion": Column.COMPLETION,
    "text": Column.TEXT,
    "solved": Column.SOLVED,
    "boxed": Column.BOXED,
    "dialogue": Column.DIALOGUE,
    "word": Column.WORD,
    "number": Column.NUMBER,
    "numbers": ListOf(Column.NUMBER, 4),
    "fraction": Column.FRACTION,
    "flag": Column.FLAG,
    "asked": Column.ASKED,
    "answered": Column.ANSWERED,
    "reply": Column.REPLY,
    "turns": Column.TURNS,
    "image": Column.IMAGE,
    "images": ListOf(Column.IMAGE, 1),
    "words": ListOf(Column.WORD, 16),
    "steps": ListOf(Column.WORD, 4),
    "flags": ListOf(Column.FLAG, 4),
    "answers": record(text=ListOf(Column.WORD, 1), answer_start=ListOf(Column.NUMBER, 1)),
    "german": record(de=Column.PROMPT, en=Column.PROMPT),
    "passages": record(
        is_selected=ListOf(Column.NUMBER, 8), passage_text=ListOf(Column.PROMPT, 8), url=ListOf(Column.WORD, 8)
    ),
    "prompts": ListOf(Column.PROMPT, 1),
    "tags": ListOf(Column.NUMBER, 16),
    "sentiment": Classes(("negative", "positive")),
    "news": Classes(("World", "Sports", "Business", "Sci/Tech")),
    "emotion": Classes(("sadness", "joy", "love", "anger", "fear", "surprise")),
    "pairs": Classes(("not_equivalent", "equivalent")),
    "entails": Classes(("entailment", "neutral", "contradiction")),
    "entailed": Classes(("entailment", "not_entailment")),
    **{f"of {count}": numbered_classes(count) for count in (2, 3, 4, 5, 10, 101, 1000)},
}
"""What the notation of `_DATASETS` calls each shape."""

_VALIDATED = "train validation test"
_SFT_PARTS = "train_sft test_sft train_gen test_gen"

_DATASETS: Mapping[str, tuple[str, str]] = {
    # Mathematics and code.
    "AI-MO/NuminaMath-CoT": ("problem prompt, solution boxed, messages answered", ""),
    "AI-MO/NuminaMath-TIR": ("problem prompt, solution boxed, messages answered", ""),
    "DigitalLearningGmbH/MATH-lighteval": ("problem prompt, level word, type word, solution boxed", ""),
    "GAIR/LIMO": ("question prompt, solution boxed, answer word", "train"),
    "HuggingFaceH4/CodeAlpaca_20K": ("prompt prompt, completion completion", ""),
    "HuggingFaceH4/MATH-500": ("problem prompt, solution boxed, answer word", "test"),
    "Jiayi-Pan/Countdown-Tasks-3to4": ("target number, nums numbers", "train"),
    "agentica-org/DeepScaleR-Preview-Dataset": ("problem prompt, answer word, solution boxed", "train"),
    "b-mc2/sql-create-context": ("answer completion, question prompt, context prompt", "train"),
    "iamtarun/python_code_instructions_18k_alpaca": (
        "instruction prompt, input prompt, output completion, prompt text", "train",
    ),
    "open-r1/DAPO-Math-17k-Processed": ("prompt prompt, solution word", "train"),
    "open-r1/Mixture-of-Thoughts": ("messages answered", "train"),
    "open-r1/OpenR1-Math-220k": (
        "problem prompt, solution boxed, answer completion, messages answered", "train",
    ),
    "openai/gsm8k": ("question prompt, answer solved", ""),
    # Instructions and conversations.
    "Abirate/english_quotes": ("quote prompt, author word, tags words", "train"),
    "HuggingFaceH4/Bespoke-Stratos-17k": ("system prompt, conversations turns, messages answered", ""),
    "HuggingFaceH4/deita-10k-v0-sft": ("prompt prompt, messages answered", _SFT_PARTS),
    "HuggingFaceH4/no_robots": ("prompt prompt, messages answered, category word", ""),
    "HuggingFaceH4/ultrachat_200k": ("prompt prompt, messages answered", _SFT_PARTS),
    "HuggingFaceTB/smol-smoltalk": ("messages answered", ""),
    "HuggingFaceTB/smoltalk": ("messages answered, source word", ""),
    "Open-Orca/OpenOrca": ("system_prompt prompt, question prompt, response completion", "train"),
    "anon8231489123/ShareGPT_Vicuna_unfiltered": ("id word, conversations turns", "train"),
    "bespokelabs/Bespoke-Stratos-17k": ("system prompt, conversations turns", "train"),
    "databricks/databricks-dolly-15k": ("instruction prompt, context prompt, response completion", "train"),
    "fka/awesome-chatgpt-prompts": ("act word, prompt prompt", "train"),
    "garage-bAInd/Open-Platypus": ("input prompt, output completion, instruction prompt", "train"),
    "mlabonne/FineTome-100k": ("conversations turns, source word, score fraction", "train"),
    "mlabonne/guanaco-llama2-1k": ("text text", "train"),
    "open-thoughts/OpenThoughts-114k": ("system prompt, conversations turns", "train"),
    "tatsu-lab/alpaca": ("instruction prompt, input prompt, output completion, text text", "train"),
    "timdettmers/openassistant-guanaco": ("text text", ""),
    "trl-lib/Capybara": ("messages answered", ""),
    "vicgalle/alpaca-gpt4": ("instruction prompt, input prompt, output completion, text text", "train"),
    "yahma/alpaca-cleaned": ("output completion, input prompt, instruction prompt", "train"),
    # Preferences.
    "Anthropic/hh-rlhf": ("chosen dialogue, rejected dialogue", ""),
    "CarperAI/openai_summarize_comparisons": ("prompt prompt, chosen completion, rejected completion", _VALIDATED),
    "Dahoas/full-hh-rlhf": ("prompt prompt, response completion, chosen completion, rejected completion", ""),
    "Dahoas/rm-static": ("prompt prompt, response completion, chosen completion, rejected completion", ""),
    "HuggingFaceH4/ultrafeedback_binarized": (
        "prompt prompt, chosen answered, rejected answered, messages answered, score_chosen number, "
        "score_rejected number",
        "train_prefs test_prefs train_sft test_sft train_gen test_gen",
    ),
    "Intel/orca_dpo_pairs": ("system prompt, question prompt, chosen completion, rejected completion", "train"),
    "argilla/distilabel-intel-orca-dpo-pairs": (
        "system prompt, input prompt, chosen completion, rejected completion", "train",
    ),
    "argilla/dpo-mix-7k": ("chosen answered, rejected answered", ""),
    "argilla/ultrafeedback-binarized-preferences-cleaned": (
        "prompt prompt, chosen answered, rejected answered", "train",
    ),
    "jondurbin/truthy-dpo-v0.1": ("system prompt, prompt prompt, chosen completion, rejected completion", "train"),
    "lvwerra/stack-exchange-paired": ("question prompt, response_j completion, response_k completion", ""),
    "mlabonne/orpo-dpo-mix-40k": ("prompt prompt, chosen answered, rejected answered, question prompt", "train"),
    "trl-lib/DeepMath-103K": ("prompt asked, solution completion", ""),
    "trl-lib/hh-rlhf-helpful-base": ("prompt asked, chosen reply, rejected reply", ""),
    "trl-lib/kto-mix-14k": ("prompt asked, completion reply, label flag", ""),
    "trl-lib/math_shepherd": ("prompt prompt, completions steps, labels flags", ""),
    "trl-lib/prm800k": ("prompt prompt, completions steps, labels flags", ""),
    "trl-lib/tldr": ("prompt prompt, completion completion", _VALIDATED),
    "trl-lib/tldr-preference": ("prompt prompt, chosen completion, rejected completion", "train validation"),
    "trl-lib/ultrafeedback_binarized": (
        "chosen answered, rejected answered, score_chosen number, score_rejected number", "",
    ),
    "trl-lib/ultrafeedback-gpt-3.5-turbo-helpfulness": ("prompt asked, completion reply, label flag", ""),
    "trl-lib/ultrafeedback-prompt": ("prompt asked", ""),
    # Plain texts.
    "HuggingFaceFW/fineweb": ("text text", "train"),
    "HuggingFaceFW/fineweb-edu": ("text text", "train"),
    "Salesforce/wikitext": ("text text", _VALIDATED),
    "Skylion007/openwebtext": ("text text", "train"),
    "allenai/c4": ("text text", "train validation"),
    "roneneldan/TinyStories": ("text text", "train validation"),
    "wikimedia/wikipedia": ("id word, url word, title word, text text", "train"),
    # Classification, questions, summaries, translation.
    "EdinburghNLP/xsum": ("document text, summary prompt, id word", _VALIDATED),
    "Yelp/yelp_review_full": ("label of 5, text prompt", ""),
    "abisee/cnn_dailymail": ("article text, highlights prompt, id word", _VALIDATED),
    "dair-ai/emotion": ("text prompt, label emotion", _VALIDATED),
    "fancyzhx/ag_news": ("text prompt, label news", ""),
    "knkarthick/samsum": ("id word, dialogue text, summary prompt", _VALIDATED),
    "nyu-mll/glue": ("sentence1 prompt, sentence2 prompt, label pairs, idx number", _VALIDATED),
    "nyu-mll/glue:cola": ("sentence prompt, label of 2, idx number", _VALIDATED),
    "nyu-mll/glue:mnli": (
        "premise prompt, hypothesis prompt, label entails, idx number",
        "train validation_matched validation_mismatched test_matched test_mismatched",
    ),
    "nyu-mll/glue:qnli": ("question prompt, sentence prompt, label entailed, idx number", _VALIDATED),
    "nyu-mll/glue:qqp": ("question1 prompt, question2 prompt, label of 2, idx number", _VALIDATED),
    "nyu-mll/glue:rte": ("sentence1 prompt, sentence2 prompt, label entailed, idx number", _VALIDATED),
    "nyu-mll/glue:sst2": ("sentence prompt, label sentiment, idx number", _VALIDATED),
    "nyu-mll/glue:stsb": ("sentence1 prompt, sentence2 prompt, label fraction, idx number", _VALIDATED),
    "rajpurkar/squad": (
        "id word, title word, context prompt, question prompt, answers answers", "train validation",
    ),
    "stanfordnlp/imdb": ("text text, label sentiment", ""),
    "stanfordnlp/sst2": ("idx number, sentence prompt, label sentiment", _VALIDATED),
    "wmt/wmt16": ("translation german", _VALIDATED),
    # Images.
    "AI-Lab-Makerere/beans": ("image_file_path word, image image, labels of 3", _VALIDATED),
    "diffusers/dog-example": ("image image", "train"),
    "diffusers/pokemon-gpt4-captions": ("image image, text prompt", "train"),
    "ethz/food101": ("image image, label of 101", "train validation"),
    "fusing/fill50k": ("image image, conditioning_image image, text prompt", "train"),
    "fusing/instructpix2pix-1000-samples": ("input_image image, edit_prompt prompt, edited_image image", "train"),
    "huggan/flowers-102-categories": ("image image", "train"),
    "huggan/smithsonian_butterflies_subset": ("image image", "train"),
    "lambdalabs/naruto-blip-captions": ("image image, text prompt", "train"),
    "lambdalabs/pokemon-blip-captions": ("image image, text prompt", "train"),
    "microsoft/cats_vs_dogs": ("image image, labels of 2", "train"),
    "uoft-cs/cifar10": ("img image, label of 10", ""),
    "ylecun/mnist": ("image image, label of 10", ""),
    # Pairs of sentences.
    "microsoft/ms_marco": (
        "answers prompts, passages passages, query prompt, query_id number, query_type word", _VALIDATED,
    ),
    **{
        f"sentence-transformers/NanoBEIR-en:{part}": (columns, "NanoMSMARCO NanoNFCorpus NanoNQ")
        for part, columns in {
            "corpus": "_id word, text text",
            "queries": "_id word, text prompt",
            "qrels": "query-id word, corpus-id word",
            "bm25": "query-id word, corpus-ids words",
        }.items()
    },
    "sentence-transformers/all-nli": ("anchor prompt, positive prompt", "train dev test"),
    "sentence-transformers/all-nli:pair-class": (
        "premise prompt, hypothesis prompt, label of 3", "train dev test",
    ),
    "sentence-transformers/all-nli:pair-score": (
        "sentence1 prompt, sentence2 prompt, score fraction", "train dev test",
    ),
    "sentence-transformers/all-nli:triplet": (
        "anchor prompt, positive prompt, negative prompt", "train dev test",
    ),
    "sentence-transformers/gooaq": ("question prompt, answer prompt", "train"),
    "sentence-transformers/natural-questions": ("query prompt, answer prompt", "train"),
    "sentence-transformers/quora-duplicates:pair": ("anchor prompt, positive prompt", "train"),
    "sentence-transformers/quora-duplicates:pair-class": (
        "sentence1 prompt, sentence2 prompt, label of 2", "train",
    ),
    "sentence-transformers/quora-duplicates:triplet": (
        "anchor prompt, positive prompt, negative prompt", "train",
    ),
    "sentence-transformers/stsb": ("sentence1 prompt, sentence2 prompt, score fraction", _VALIDATED),
    "sentence-transformers/wikipedia-en-sentences": ("sentence prompt", "train"),
}  # fmt: skip
"""By name, or by name and part: each column with its shape, and the splits (`train test` if empty)."""

_KEYS_OF_REWARDS = ("style", "ground_truth")

_OF_TRAINERS: Mapping[str, Mapping[str, Shape]] = {
    # The parquet files that verl's users write with its examples/data_preprocess.
    "verl": {
        "data_source": Column.SOURCE,
        "prompt": Column.ASKED,
        "ability": Column.WORD,
        "reward_model": Record(tuple((key, Column.WORD) for key in _KEYS_OF_REWARDS)),
        "extra_info": record(split=Column.WORD, index=Column.NUMBER),
    },
    "axolotl": {
        "instruction": Column.PROMPT,
        "input": Column.WORD,
        "output": Column.COMPLETION,
        "text": Column.TEXT,
        "messages": Column.ANSWERED,
        "conversations": Column.TURNS,
    },
    # ms-swift's own format, and the names that its readers of other formats look for.
    "swift": {
        "messages": Column.ANSWERED,
        "rejected_response": Column.SOLVED,  # it has to differ from the response
        "label": Column.FLAG,
        "solution": Column.WORD,
        "instruction": Column.PROMPT,
        "output": Column.COMPLETION,
        "query": Column.PROMPT,
        "response": Column.COMPLETION,
        "tag": Column.WORD,
    },
}
"""By the package of a trainer: the columns of every data set that it loads and this machine lacks."""

_SHORT_NAMES = {
    "ag_news": "fancyzhx/ag_news",
    "beans": "AI-Lab-Makerere/beans",
    "c4": "allenai/c4",
    "cifar10": "uoft-cs/cifar10",
    "cnn_dailymail": "abisee/cnn_dailymail",
    "emotion": "dair-ai/emotion",
    "food101": "ethz/food101",
    "glue": "nyu-mll/glue",
    "gsm8k": "openai/gsm8k",
    "imdb": "stanfordnlp/imdb",
    "mnist": "ylecun/mnist",
    "openwebtext": "Skylion007/openwebtext",
    "samsum": "knkarthick/samsum",
    "sst2": "stanfordnlp/sst2",
    "squad": "rajpurkar/squad",
    "wikitext": "Salesforce/wikitext",
    "wmt16": "wmt/wmt16",
    "xsum": "EdinburghNLP/xsum",
    "yelp_review_full": "Yelp/yelp_review_full",
}
"""Names from before the hub had owners."""

_BY_NAME = {name.lower(): dataset for name, dataset in _DATASETS.items()}


def find_known(name: str, part: str | None = None) -> KnownDataset | None:
    """Return the data set of this name, case ignored, and of this part if it has several; None if it is not known."""
    full = _SHORT_NAMES.get(name.lower(), name).lower()
    found = _BY_NAME.get(f"{full}:{part}") or _BY_NAME.get(full)
    if found is None:
        return None
    columns = dict(column.split(" ", 1) for column in found[0].split(", "))
    shapes = {column: _SHAPES[shape] for column, shape in columns.items()}
    return KnownDataset(columns=shapes, splits=tuple(found[1].split()) or _TRAIN_TEST)


def of_trainer(modules: Container[str]) -> KnownDataset | None:
    """Return the rows that a trainer reads whose package is among the imported modules."""
    columns = next((columns for package, columns in _OF_TRAINERS.items() if package in modules), None)
    return None if columns is None else KnownDataset(columns=columns)


def known_names() -> tuple[str, ...]:
    """Return the names, each with its part after a colon if it has several."""
    return tuple(_DATASETS)


_GREY = 128


@dataclass(frozen=True)
class _Form:
    """How a data set keeps its images: the shape of one, the name of the labels, and what both are."""

    image: tuple[int, ...]
    classes: int
    labels: str = "targets"
    is_tensor: bool = False


_MNIST = _Form((28, 28), 10, is_tensor=True)
_FORMS: Mapping[str, _Form] = {
    "MNIST": _MNIST,
    "FashionMNIST": _MNIST,
    "KMNIST": _MNIST,
    "EMNIST": _MNIST,
    "CIFAR10": _Form((32, 32, 3), 10),
    "CIFAR100": _Form((32, 32, 3), 100),
    "SVHN": _Form((3, 32, 32), 10, labels="labels"),
    "STL10": _Form((3, 96, 96), 10, labels="labels"),
}
"""By the name of the class; a class made from one has its form."""

_WITH_OWN_LOADING = ("MNIST", "CIFAR10", "SVHN", "STL10")
"""Classes that load; the others are made from them."""

_UNAVAILABLE = ("Dataset not found", "Error downloading", "File not found", "<urlopen error")


def vision_patches(module: ModuleType, options: SubstituteOptions, replaced: Replaced) -> list[Patch]:
    """Return the patches of torchvision's classes, which download their images."""
    owners = [getattr(module, name) for name in _WITH_OWN_LOADING]
    return [(owner, "__init__", _made(owner.__init__, options, replaced)) for owner in owners]


def _made(original: Any, options: SubstituteOptions, replaced: Replaced) -> Any:
    def load(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except (RuntimeError, OSError) as error:
            form = _form_of(type(self))
            if form is None or not str(error).startswith(_UNAVAILABLE):
                raise
            _fill(self, form, options.rows)
            shape = " x ".join(str(size) for size in form.image)
            replaced.add("images of", type(self).__name__, f"{options.rows:,} grey ones of {shape}")

    return load


def _form_of(kind: type) -> _Form | None:
    return next((_FORMS[each.__name__] for each in kind.__mro__ if each.__name__ in _FORMS), None)


def _fill(data_set: Any, form: _Form, rows: int) -> None:
    import torch  # only a worker has it

    images = torch.full((rows, *form.image), _GREY, dtype=torch.uint8)
    labels = torch.arange(rows) % form.classes
    data_set.data = images if form.is_tensor else images.numpy()
    if form.labels == "labels":
        data_set.labels = labels.numpy()
    else:
        data_set.targets = labels if form.is_tensor else labels.tolist()
    if not hasattr(data_set, "classes"):
        data_set.classes = [str(number) for number in range(form.classes)]
    if not hasattr(data_set, "class_to_idx"):
        data_set.class_to_idx = {name: number for number, name in enumerate(data_set.classes)}
