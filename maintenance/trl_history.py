"""Compare the tables about releases of trl with its sources: `python -m maintenance.trl_history FOLDER`.

FOLDER has one folder per release, named by its tag (``v0.14.0``), with the package ``trl`` in it: `git archive TAG trl`
of https://github.com/huggingface/trl, or an unpacked wheel. Sources are parsed, not imported. Ends with 1 if a row
differs.
"""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from profiler.config.trl_releases.behaviours import LABEL_LOSSES, LOGPROBS
from profiler.config.trl_releases.facts import (
    DEFAULTS,
    KEY_VERSIONS,
    MODEL_CONFIG_KEYS,
    RELEASES,
    TRAINERS,
    Versions,
    release_of,
)
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Logprobs

_FILES = {recipe: f"{recipe}_config.py" for recipe in Recipe}
_SHARED = ("base_config.py", "model_config.py")

Fields = Mapping[str, str]
"""Names of the fields of configuration classes, with their defaults as source."""


def read_fields(trainer: Path, recipe: Recipe) -> Fields:
    """Return the fields of the configuration of `recipe` and of `ModelConfig` in a folder ``trl/trainer``."""
    found: dict[str, str] = {}
    for name in (*_SHARED, _FILES[recipe]):
        file = trainer / name
        if file.is_file():
            found.update(_fields(ast.parse(file.read_text())))
    return found


def _fields(tree: ast.Module) -> Iterator[tuple[str, str]]:
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    for statement in (each for node in classes for each in node.body):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(keywords=keywords)):
                defaults = [ast.unparse(each.value) for each in keywords if each.arg == "default"]
                yield name, defaults[0] if defaults else ""
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                yield name, ast.unparse(value)


def differences(recipe: Recipe, by_release: Mapping[str, Sequence[Fields]]) -> Iterator[str]:
    """Return a sentence per row of the tables that the sources contradict.

    Args:
        recipe: The trainer.
        by_release: The fields of each patch release, by release.
    """
    table = {**{key: Versions.of(text) for key, text in MODEL_CONFIG_KEYS.items()}, **KEY_VERSIONS[recipe]}
    for release in TRAINERS[recipe].releases:
        patches = by_release.get(release, ())
        if not patches:
            yield f"{recipe}: there are no sources of {release}"
            continue
        for key, versions in table.items():
            has = any(key in fields for fields in patches)
            if has is not (release in versions) and release in TRAINERS[recipe]:
                yield f"{recipe}: {key} {'is' if has else 'is not'} in {release}, and the table says {versions}"
        yield from _other_defaults(recipe, release, patches)


def _other_defaults(recipe: Recipe, release: str, patches: Sequence[Fields]) -> Iterator[str]:
    for row in DEFAULTS:
        if recipe not in row.recipes or release not in row.versions:
            continue
        stated = {fields[row.key] for fields in patches if row.key in fields}
        # null is decided in __post_init__, and is transformers' default of a type.
        if stated and repr(row.value) not in stated and stated != {"None"}:
            yield f"{recipe}: {row.key} is {', '.join(sorted(stated))} in {release}, and the table says {row.value!r}"


_TRAINERS = {recipe: f"{recipe}_trainer.py" for recipe in Recipe}

_Marks = tuple[tuple[tuple[str, ...], Logprobs], ...]

_MARKS: _Marks = (
    (("add_fused_lm_head(",), Logprobs.FUSED),
    (("selective_log_softmax", "row_mask="), Logprobs.SELECTIVE_KERNEL),
    (("selective_log_softmax", "logits.div_("), Logprobs.SELECTIVE_IN_PLACE),
    (("selective_log_softmax", "outputs = model(**model_inputs)"), Logprobs.SELECTIVE_KEPT),
    (("selective_log_softmax", "entropy_from_logits(logits)", "chunk_size: int = 1)"), Logprobs.SELECTIVE_ROW_ENTROPY),
    (("selective_log_softmax",), Logprobs.SELECTIVE),
    ((), Logprobs.FULL),
)
"""What the source of a trainer and of `utils.py` has, the first that holds; and the value of `logprobs`."""

_SHIFTED = "shift_logits = outputs.logits[..., :-1, :]"
_CHUNKED = 'self.loss_type = "nll" if self.use_liger_kernel else "chunked_nll"'
_LABEL_MARKS: _Marks = (
    (("fused_lm_head",), Logprobs.FUSED),
    ((_CHUNKED, "w.to(h.dtype)"), Logprobs.CHUNKED_NLL_CAST),
    ((_CHUNKED, "* log_p).sum(dim=-1) * valid)"), Logprobs.CHUNKED_NLL_MASKED),
    ((_CHUNKED,), Logprobs.CHUNKED_NLL),
    ((f"{_SHIFTED}.contiguous()", "entropy_from_logits(shift_logits)"), Logprobs.NLL_TWO_COPIES),
    ((_SHIFTED, "entropy_from_logits(shift_logits)"), Logprobs.NLL_ENTROPY),
    ((_SHIFTED, "entropy_from_logits(outputs.logits)", "chunk_size: int = 1)"), Logprobs.NLL_ROW_ENTROPY),
    ((f"{_SHIFTED}.contiguous()",), Logprobs.NLL_ACCURACY),
    ((), Logprobs.NLL),
)
"""The same of `SFTTrainer` and its configuration, whose `loss_type` is the default."""


def logprobs_of(source: str, recipe: Recipe = Recipe.GRPO) -> Logprobs:
    """Return how a trainer computes log-probabilities, by its source and that of `entropy_from_logits`."""
    table = _LABEL_MARKS if recipe is Recipe.SFT else _MARKS
    return next(logprobs for marks, logprobs in table if all(mark in source for mark in marks))


def read_logprobs(trainer: Path, recipe: Recipe) -> Logprobs:
    """Return how `recipe` computes log-probabilities in a folder ``trl/trainer``; a head of scores computes none."""
    if not recipe.facts.has_lm_head:
        return Logprobs.FUSED
    entropy = (trainer / "utils.py").read_text().partition("def entropy_from_logits(")[2].partition("\n")[0]
    source = (trainer / _TRAINERS[recipe]).read_text() + entropy
    if recipe is Recipe.SFT:
        source += (trainer / "sft_config.py").read_text()
    return logprobs_of(source, recipe)


def other_logprobs(recipe: Recipe, release: str, found: Logprobs) -> Iterator[str]:
    """Return a sentence if the table says that a release computes log-probabilities in another way than `found`."""
    table = LABEL_LOSSES if recipe is Recipe.SFT else LOGPROBS
    stated = next((row.logprobs for row in table if release in row.versions), Logprobs.FUSED)
    if found is not stated:
        yield f"{recipe}: logprobs is {found} in {release}, and the table says {stated}"


def main(argv: Sequence[str]) -> int:
    """Print what differs and return the exit code."""
    (folder,) = map(Path, argv)
    found: list[str] = []
    for recipe in Recipe:
        by_release: dict[str, list[Fields]] = {release: [] for release in RELEASES}
        for place in sorted(folder.iterdir()):
            release = release_of(place.name)
            if release is not None:
                trainer = place / "trl" / "trainer"
                by_release[release].append(read_fields(trainer, recipe))
                if release in TRAINERS[recipe]:
                    found += other_logprobs(recipe, release, read_logprobs(trainer, recipe))
        found += differences(recipe, by_release)
    keys = sum(map(len, KEY_VERSIONS.values()))
    sys.stdout.write(
        "\n".join(
            found
            or [
                f"{len(DEFAULTS)} defaults, {keys} keys and {len(LOGPROBS) + len(LABEL_LOSSES)} rows of logprobs agree."
            ]
        )
        + "\n"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
