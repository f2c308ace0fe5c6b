"""What changed between the releases of trl: the tables agree with the installed trl and with themselves."""

import inspect
from pathlib import Path

import pytest

from maintenance.trl_history import differences, logprobs_of, other_logprobs, read_fields, read_logprobs
from profiler.config.trl.interval import possible_versions, read_trl_variants
from profiler.config.trl_releases.behaviours import (
    EFFECTS,
    FIRST_FUSED,
    LABEL_LOSSES,
    LAST_WITH_LABEL_LOGITS,
    LAST_WITH_LOGITS,
    LOGPROBS,
    UNCOUNTED,
)
from profiler.config.trl_releases.facts import (
    DEFAULTS,
    FIRST_WITHOUT_REFERENCE,
    KEY_VERSIONS,
    MODEL_CONFIG_KEYS,
    NEWEST,
    OLDEST,
    RELEASES,
    TRAINERS,
    Versions,
    defaults_of,
    release_of,
    spans_text,
)
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import SPEC_KEYS, Logprobs

_CLASSES = {recipe: f"{recipe.in_classes}Config" for recipe in Recipe}
_NULL_IN_TRL = {"bf16": None}
"""Defaults that trl stores as null and decides in `__post_init__`."""


def _fields(recipe):
    trl = pytest.importorskip("trl")
    return {**trl.ModelConfig.__dataclass_fields__, **getattr(trl, _CLASSES[recipe]).__dataclass_fields__}


def test_the_newest_release_is_the_one_that_is_installed():
    trl = pytest.importorskip("trl")
    assert release_of(trl.__version__) == NEWEST


@pytest.mark.parametrize("recipe", Recipe)
def test_the_installed_trl_has_the_keys_of_the_newest_release_and_no_others(recipe):
    fields = _fields(recipe)
    table = {**KEY_VERSIONS[recipe], **{key: Versions.of(text) for key, text in MODEL_CONFIG_KEYS.items()}}
    assert {key: key in fields for key in table} == {key: versions.last == NEWEST for key, versions in table.items()}


@pytest.mark.parametrize("recipe", Recipe)
def test_the_installed_trl_has_the_defaults_of_the_newest_release(recipe):
    fields = _fields(recipe)
    stated = {key: _NULL_IN_TRL.get(key, value) for key, value in defaults_of(recipe, NEWEST).items()}
    assert {key: fields[key].default for key in stated} == stated


def test_the_installed_trl_makes_no_logits_of_all_completions():
    pytest.importorskip("trl")
    from trl.trainer import dpo_trainer, grpo_trainer, kto_trainer, rloo_trainer

    for module in (dpo_trainer, grpo_trainer, kto_trainer, rloo_trainer):
        source = Path(inspect.getfile(module)).read_text()
        assert "add_fused_lm_head(" in source
        assert "selective_log_softmax(" not in source


def test_the_newest_release_only_copies_adapters():
    # A trial lets trl put the adapters into a model, and a script may do so itself.
    assert {row.key for row in EFFECTS if NEWEST in row.versions} == {"ref_adapter"}
    (uncounted,) = [row for row in UNCOUNTED if NEWEST in row.versions]
    assert uncounted.recipes == set(GENERATING) and uncounted.meaning.endswith("in float32 under ZeRO-3")
    assert (LAST_WITH_LOGITS, FIRST_FUSED, FIRST_WITHOUT_REFERENCE) == ("1.14", "1.15", "0.19")


@pytest.mark.parametrize("recipe", Recipe)
def test_each_default_is_stated_once_for_every_release(recipe):
    rows = [row for row in DEFAULTS if recipe in row.recipes]
    for key in {row.key for row in rows}:
        covered = [release for row in rows if row.key == key for release in row.versions.releases]
        assert len(covered) == len(set(covered)), key
        assert set(TRAINERS[recipe].releases) <= set(covered), key


def test_each_row_has_a_source_and_a_key_of_a_trial():
    rows = [*DEFAULTS, *EFFECTS]
    assert all(row.source and row.key in SPEC_KEYS for row in rows)
    assert all(row.source and row.meaning for row in UNCOUNTED)


@pytest.mark.parametrize(
    ("text", "found"),
    [("0.18", "0.18"), ("v0.18.2", "0.18"), ("1.16.0", "1.16"), ("0.20", "0.20"), ("0.2", None), ("1.17", None)],
)
def test_a_release_is_named_by_its_first_two_numbers(text, found):
    assert release_of(text) == found


def test_intervals():
    assert str(Versions("0.15", "0.17") & Versions("0.17", "1.0")) == "0.17"
    assert Versions("0.15", "0.16") & Versions("0.17", "1.0") is None
    assert spans_text(["0.17", "0.14", "0.15"]) == "0.14 to 0.15 and 0.17"
    assert "1.0" in Versions("0.29", "1.1")
    assert (RELEASES.index("1.0") - RELEASES.index("0.29"), OLDEST) == (1, "0.14")


@pytest.mark.parametrize(
    ("recipe", "keys", "interval"),
    [
        (Recipe.GRPO, {}, "0.14 to 1.16"),
        (Recipe.GRPO, {"vllm_device": "auto"}, "0.14 to 0.17"),
        (Recipe.GRPO, {"max_prompt_length": 512}, "0.14 to 0.27"),
        (Recipe.GRPO, {"max_prompt_length": None, "reward_weights": [1.0]}, "0.15 to 0.27"),
        (Recipe.GRPO, {"torch_dtype": "bfloat16", "vllm_mode": "colocate"}, "0.18 to 0.26"),
        (Recipe.GRPO, {"dtype": "bfloat16"}, "0.23 to 1.16"),
        (Recipe.GRPO, {"vllm_enable_sleep_mode": True, "max_prompt_length": 512}, "0.23 to 0.27"),
        (Recipe.GRPO, {"use_adaptive_entropy": True}, "1.8 to 1.16"),
        (Recipe.GRPO, {"learning_rate": 1e-6, "my_own_key": 3}, "0.14 to 1.16"),
        (Recipe.RLOO, {}, "0.22 to 1.16"),
        (Recipe.RLOO, {"max_prompt_length": 512}, "0.22 to 0.28"),
        (Recipe.RLOO, {"vllm_enable_sleep_mode": True}, "0.24 to 1.16"),
        (Recipe.SFT, {"max_seq_length": 1024}, "0.14 to 0.19"),
        (Recipe.SFT, {"max_length": 1024}, "0.16 to 1.16"),
        (Recipe.SFT, {"max_length": 1024, "max_prompt_length": 512}, "0.16 to 1.16"),
        (Recipe.DPO, {"max_length": 1024, "beta": 0.1}, "1.15 to 1.16"),
        (Recipe.KTO, {"desirable_weight": 1.0}, "1.15 to 1.16"),
        (Recipe.REWARD, {"max_length": 1024}, "0.24 to 1.16"),
    ],
)
def test_the_keys_of_a_recipe_give_an_interval(recipe, keys, interval):
    found = possible_versions(keys, recipe)
    assert str(found.versions) == interval
    assert f"trl {interval} (" in found.notes[0].text


def test_keys_that_no_release_has_together_are_named():
    found = possible_versions({"vllm_device": "auto", "vllm_mode": "server"}, Recipe.GRPO)
    assert str(found.versions) == "0.14 to 1.16"
    assert "no release has all keys (vllm_mode of 0.18 to 1.16, vllm_device of 0.14 to 0.17)" in found.notes[0].text


def test_a_stated_release_wins_and_names_the_keys_that_it_lacks():
    found = possible_versions({"vllm_device": "auto", "beta": 0.04}, Recipe.GRPO, stated="0.20")
    assert str(found.versions) == "0.20"
    assert found.notes[0].text == "trl 0.20 as stated, although vllm_device is of 0.14 to 0.17"
    assert possible_versions({"beta": 0.04}, Recipe.GRPO, stated="0.20").notes == ()


def test_rloo_of_earlier_releases_is_another_trainer():
    (fault,) = possible_versions({}, Recipe.RLOO, stated="0.21").faults
    assert (fault.key, fault.found) == ("trl", "0.21")


def test_a_type_that_a_script_passes_to_transformers_is_no_key_of_trl():
    assert str(possible_versions({"dtype": "auto"}, Recipe.GRPO, has_model_config=False).versions) == "0.14 to 1.16"


def _points(keys, **options):
    found = read_trl_variants({"model_name_or_path": "Qwen/Qwen2.5-0.5B", **keys}, **options)
    return {release: each.reading.point for each in found.variants for release in each.releases}


@pytest.mark.parametrize(
    ("keys", "key", "by_release"),
    [
        ({}, "beta", {"0.18": 0.04, "0.19": 0.0, "1.16": 0.0}),
        ({"beta": 0.0}, "beta", {"0.14": 0.04, "0.15": 0.04, "0.16": 0.0}),
        ({}, "max_completion_length", {"1.9": 256, "1.10": 512}),
        ({}, "max_prompt_length", {"0.25": 512, "0.26": None}),
        ({"max_prompt_length": None}, "max_prompt_length", {"0.25": None}),
        ({}, "gradient_checkpointing", {"0.21": False, "0.22": True}),
        ({}, "bf16", {"0.18": False, "0.19": True}),
        ({}, "optim", {"0.20": "adamw_torch", "0.21": "adamw_torch_fused"}),
        ({}, "per_device_train_batch_size", {"0.14": 8, "0.15": 8}),
        (
            {"per_device_train_batch_size": 2, "num_generations": 4},
            "per_device_train_batch_size",
            {"0.14": 8, "0.15": 2},
        ),
        ({"gradient_accumulation_steps": 4}, "steps_per_generation", {"0.14": 1, "0.16": 1, "0.17": None}),
        ({}, "logprobs", {"0.14": "full", "0.15": "selective", "0.19": "selective", "0.20": "selective_row_entropy"}),
        ({}, "logprobs", {"0.22": "selective_row_entropy", "0.23": "selective", "0.29": "selective"}),
        ({}, "logprobs", {"1.0": "selective_in_place", "1.9": "selective_in_place", "1.10": "selective_kept"}),
        ({}, "logprobs", {"1.13": "selective_kept", "1.14": "selective_kernel", "1.15": None}),
        ({"use_liger_kernel": True}, "logprobs", {"0.24": "selective", "0.25": None, "1.14": None}),
        ({"use_liger_loss": True}, "logprobs", {"0.17": None, "0.25": None, "0.27": None}),
        ({"use_liger_loss": True}, "use_liger_kernel", {"0.24": None, "0.25": True, "0.27": True}),
        (
            {"use_liger_loss": False, "use_liger_kernel": True},
            "logprobs",
            {"0.24": "selective", "0.25": "selective", "0.27": "selective"},
        ),
        ({}, "bf16", {"0.18": False, "0.19": True, "1.16": True}),
        ({"fp16": True}, "bf16", {"0.18": False, "0.19": False, "1.16": False}),
        ({"fp16": True, "bf16": True}, "bf16", {"0.18": True, "1.16": True}),
        ({"fp16": True}, "fp16", {"0.14": True, "1.16": True}),
        ({"use_vllm": True}, "vllm_mode", {"0.17": "server", "0.29": "server", "1.0": None}),
        (
            {"use_vllm": True, "vllm_mode": "colocate", "max_prompt_length": 100, "max_completion_length": 200},
            "vllm_max_model_length",
            {"0.18": 300, "0.25": 300, "0.26": None},
        ),
    ],
)
def test_each_release_has_its_defaults_and_effects(keys, key, by_release):
    points = _points(keys)
    assert {release: points[release].get(key) for release in by_release} == by_release


def test_rloo_has_its_own_releases():
    points = _points({"normalize_advantages": True, "use_vllm": True, "vllm_mode": "colocate"})
    assert "0.21" not in points
    assert points["0.26"]["vllm_max_model_length"] == 512 + 256
    assert "vllm_max_model_length" not in points["0.27"]
    assert (points["1.14"]["beta"], points["1.14"]["logprobs"]) == (0.05, "selective_kernel")
    assert (points["0.22"]["logprobs"], points["1.13"]["logprobs"]) == ("selective_row_entropy", "selective_kept")


def test_liger_has_no_loss_for_rloo():
    points = _points({"normalize_advantages": True, "use_liger_kernel": True})
    assert (points["0.29"]["logprobs"], points["1.14"]["logprobs"]) == ("selective", "selective_kernel")


def test_each_release_with_logits_computes_log_probabilities_in_one_way():
    for table in (LOGPROBS, LABEL_LOSSES):
        covered = [release for row in table for release in row.versions.releases]
        assert tuple(covered) == Versions(OLDEST, LAST_WITH_LOGITS).releases
        assert all(row.source for row in table)
    rows = (*LOGPROBS, *LABEL_LOSSES)
    assert {row.logprobs for row in rows} == {each for each in Logprobs if each.is_of_trl and not each.has_fused_head}
    at_once = [release for row in LABEL_LOSSES if row.logprobs.makes_all_logits for release in row.versions.releases]
    assert tuple(at_once) == Versions(OLDEST, LAST_WITH_LABEL_LOGITS).releases


_LABELS = {"max_length": 1024, "per_device_train_batch_size": 4}


@pytest.mark.parametrize(
    ("keys", "by_release"),
    [
        (_LABELS, {"0.16": "nll_accuracy", "0.21": "nll_accuracy", "0.22": "nll_row_entropy", "0.23": "nll_accuracy"}),
        (_LABELS, {"1.2": "nll_accuracy", "1.3": "nll_two_copies", "1.5": "nll_two_copies", "1.6": "nll_entropy"}),
        (_LABELS, {"1.7": "chunked_nll", "1.8": "chunked_nll_masked", "1.12": "chunked_nll_masked"}),
        (_LABELS, {"1.13": "chunked_nll_cast", "1.14": "chunked_nll_cast", "1.15": None, "1.16": None}),
        ({"max_seq_length": 1024}, {"0.14": "nll", "0.15": "nll_accuracy"}),
        ({**_LABELS, "loss_type": "nll"}, {"0.23": "nll_accuracy", "1.7": "nll_entropy", "1.14": "nll_entropy"}),
        ({**_LABELS, "loss_type": "nll"}, {"1.15": None, "1.16": None}),
        ({**_LABELS, "loss_type": "chunked_nll"}, {"1.4": "chunked_nll", "1.6": "chunked_nll", "1.16": None}),
        ({**_LABELS, "loss_type": "chunked_nll"}, {"1.7": "chunked_nll", "1.14": "chunked_nll_cast"}),
        ({**_LABELS, "loss_type": "dft"}, {"0.23": None, "1.14": None}),
        ({**_LABELS, "use_liger_kernel": True}, {"0.16": None, "1.6": None, "1.8": None}),
        ({"max_seq_length": 1024, "use_liger": True}, {"0.14": None, "0.17": None}),
    ],
)
def test_each_release_takes_its_loss_of_labels(keys, by_release):
    points = _points({**keys, "packing": True})
    assert {release: points[release].get("logprobs") for release in by_release} == by_release


def test_images_have_no_length_of_prompts_to_which_they_are_cut():
    assert "max_prompt_length" not in _points({"model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct"})["0.25"]


_QLORA = {"num_generations": 8, "load_in_4bit": True, "use_peft": True}


@pytest.mark.parametrize(
    ("keys", "job", "said"),
    [
        (_QLORA, {}, "norms and adapters over weights in 4 bits in float32 (trl 0.22 to 0.25)"),
        (_QLORA, {}, "adapters in float32 (trl 0.14 to 0.21)"),
        ({"num_generations": 8, "use_liger_kernel": True}, {}, "that Liger computes the loss (trl 0.25 to 1.14)"),
        ({"num_generations": 8, "use_peft": True}, {"zero_stage": 3}, "with LoRA under ZeRO-3 (trl 0.14 to 0.18)"),
        ({"packing": True, "loss_type": "dft"}, {}, "with loss_type=dft (trl 0.23 to 1.14)"),
        ({"num_generations": 8, "beta": 0.1}, {"zero_stage": 3}, "reference scores the next (trl 0.15 to 1.14)"),
    ],
)  # fmt: skip
def test_what_earlier_releases_need_without_a_formula_is_named(keys, job, said):
    notes = read_trl_variants(keys, job=job).notes
    assert any(said in note.text and not note.is_counted for note in notes)
    assert not any(said in note.text for note in read_trl_variants(keys, job=job, stated=NEWEST).notes)


def _history(recipe):
    """Return fields of each release as the tables say."""
    table = {**KEY_VERSIONS[recipe], **{key: Versions.of(text) for key, text in MODEL_CONFIG_KEYS.items()}}
    return {
        release: [
            {
                **{key: "None" for key, versions in table.items() if release in versions},
                **{key: repr(value) for key, value in defaults_of(recipe, release).items() if key not in table},
            }
        ]
        for release in RELEASES
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"beta": "0.0"}, "grpo: beta is 0.0 in 0.18, and the table says 0.04"),
        ({"log_multimodal": "True"}, "grpo: log_multimodal is in 0.18, and the table says 1.9 to 1.16"),
        ({"epsilon": None}, "grpo: epsilon is not in 0.18, and the table says 0.16 to 1.16"),
    ],
)
def test_a_row_that_the_sources_of_a_release_contradict_is_found(change, said):
    history = _history(Recipe.GRPO)
    assert list(differences(Recipe.GRPO, history)) == []
    fields = {**history["0.18"][0], **change}
    history["0.18"] = [{key: value for key, value in fields.items() if value is not None}]
    assert list(differences(Recipe.GRPO, history)) == [said]


@pytest.mark.parametrize("recipe", Recipe)
def test_the_sources_of_the_installed_release_agree_with_the_tables(recipe):
    trl = pytest.importorskip("trl")
    fields = read_fields(Path(trl.__file__).parent / "trainer", recipe)
    history = {**_history(recipe), NEWEST: [fields]}
    assert list(differences(recipe, history)) == []
    assert len(fields) > 10


@pytest.mark.parametrize("recipe", Recipe)
def test_the_installed_release_computes_log_probabilities_as_the_table_says(recipe):
    trl = pytest.importorskip("trl")
    found = read_logprobs(Path(trl.__file__).parent / "trainer", recipe)
    assert found is Logprobs.FUSED
    assert list(other_logprobs(recipe, NEWEST, found)) == []


@pytest.mark.parametrize(
    ("source", "release", "logprobs"),
    [
        ("logits_row.log_softmax(dim=-1)", "0.14", "full"),
        ("selective_log_softmax(logits, input_ids)", "0.15", "selective"),
        (
            "selective_log_softmax(logits, ids) entropy_from_logits(logits) chunk_size: int = 1)",
            "0.20",
            "selective_row_entropy",
        ),
        ("selective_log_softmax(logits, ids) entropy_from_logits(logits) chunk_size: int = 128)", "0.23", "selective"),
        ("selective_log_softmax(logits, ids) logits.div_(self.temperature)", "1.0", "selective_in_place"),
        ("outputs = model(**model_inputs) selective_log_softmax(logits, ids)", "1.13", "selective_kept"),
        ("selective_log_softmax(logits, ids, row_mask=mask)", "1.14", "selective_kernel"),
        ("add_fused_lm_head(model)", "1.15", "fused"),
    ],
)
def test_the_source_of_a_trainer_tells_how_it_computes_log_probabilities(source, release, logprobs):
    found = logprobs_of(source)
    assert found is Logprobs(logprobs)
    assert list(other_logprobs(Recipe.GRPO, release, found)) == []
    (said,) = other_logprobs(Recipe.GRPO, release, Logprobs.MINIBATCH)
    assert said == f"grpo: logprobs is minibatch in {release}, and the table says {found}"


_SHIFTED = "shift_logits = outputs.logits[..., :-1, :]"
_CHUNKED = 'self.loss_type = "nll" if self.use_liger_kernel else "chunked_nll"'


@pytest.mark.parametrize(
    ("source", "release", "logprobs"),
    [
        ("class SFTTrainer", "0.14", "nll"),
        (f"{_SHIFTED}.contiguous()", "0.15", "nll_accuracy"),
        (
            f"entropy_from_logits(outputs.logits) chunk_size: int = 1) {_SHIFTED}.contiguous()",
            "0.22",
            "nll_row_entropy",
        ),
        (f"entropy_from_logits(outputs.logits) chunk_size: int = 128) {_SHIFTED}.contiguous()", "1.2", "nll_accuracy"),
        (f"{_SHIFTED}.contiguous() entropy_from_logits(shift_logits)", "1.3", "nll_two_copies"),
        (f"{_SHIFTED} entropy_from_logits(shift_logits)", "1.6", "nll_entropy"),
        (f"{_SHIFTED} {_CHUNKED}", "1.7", "chunked_nll"),
        (f"{_SHIFTED} {_CHUNKED} (-(log_p.exp() * log_p).sum(dim=-1) * valid).sum()", "1.8", "chunked_nll_masked"),
        (f"{_SHIFTED} {_CHUNKED} (h @ w.to(h.dtype).t()).float()", "1.13", "chunked_nll_cast"),
        ("model(**inputs, fused_lm_head=True)", "1.15", "fused"),
    ],
)
def test_the_source_of_the_trainer_tells_what_it_makes_of_the_logits_of_labels(source, release, logprobs):
    found = logprobs_of(source, Recipe.SFT)
    assert found is Logprobs(logprobs)
    assert list(other_logprobs(Recipe.SFT, release, found)) == []
    (said,) = other_logprobs(Recipe.SFT, release, Logprobs.MINIBATCH)
    assert said == f"sft: logprobs is minibatch in {release}, and the table says {found}"
