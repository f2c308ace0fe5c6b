"""verl's published table of hardware: the kept rows are those of today's code, and the mean length of rows decides."""

from pathlib import Path

import pytest

from maintenance.verl_tuning import JOBS, MEAN_ROW, PAGE, ROWS, comparison, jobs_of, main, page
from profiler.analytical.explanation.boundary import verl_fit
from profiler.analytical.explanation.explained import Fit
from profiler.analytical.timeline.recipes.verl import Component, VerlPhase, verl_estimate
from profiler.config.models.lookup import builtin_architecture
from profiler.config.verl.config import read_verl, read_verl_config
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.rendering.layouts.script_data import as_csv

KEPT = Path(__file__).parents[2] / "results" / "reference" / "verl_tuning"
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
JOB = {
    f"{MODEL}.path": "Qwen/Qwen2.5-7B-Instruct",
    "algorithm.adv_estimator": "grpo",
    "data.max_prompt_length": 1024,
    "data.max_response_length": 1024,
    "trainer.n_gpus_per_node": 2,
    f"{MODEL}.use_remove_padding": True,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 16,
    f"{ACTOR}.fsdp_config.param_offload": True,
    f"{ACTOR}.fsdp_config.optimizer_offload": True,
}
CARD = KNOWN_GPUS["h100-80gb"]


def _fit(keys):
    reading = read_verl(keys)
    shape = builtin_architecture(reading.job.model)
    return verl_fit(reading.job, reading.job_at, shape, CARD, removes_padding=reading.removes_padding)


def test_the_kept_rows_are_those_of_the_code():
    rows = comparison(jobs_of(KEPT))
    assert (KEPT / ROWS).read_text() == as_csv(rows)
    assert (KEPT / PAGE).read_text() == page(rows)


def test_every_row_of_the_table_has_a_verdict_with_a_reason():
    rows = comparison(jobs_of(KEPT))
    assert len(rows) == 12
    full = rows[(rows["task"] == "GRPO") & (rows["gpu"] == "h100-80gb")]
    assert list(full["peak_at_most_gib"]) == [86.4, 95.5, 92.8]
    assert set(full["fit_at_most"]) == {"does not fit"}
    assert set(rows["agrees"]) == {"yes"}
    assert all(rows["why"])


def test_the_command_writes_both_files(tmp_path):
    (tmp_path / "verl_tuning").mkdir()
    (tmp_path / "verl_tuning" / JOBS).write_text((KEPT / JOBS).read_text())
    assert main([f"results_dir={tmp_path}"]) == EXIT_OK
    assert (tmp_path / "verl_tuning" / ROWS).read_text() == (KEPT / ROWS).read_text()
    assert main(["--help"]) == EXIT_OK
    assert main(["nothing=1"]) == EXIT_USAGE


def test_the_mean_length_counts_where_padding_is_removed():
    job = {**JOB, "trainer.n_gpus_per_node": 4, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 32}
    job |= {f"{ACTOR}.ppo_mini_batch_size": 256, "actor_rollout_ref.rollout.n": 8}
    fit = _fit(job)
    assert fit.fit is Fit.TOO_LARGE
    assert fit.fits_up_to is not None and fit.tight_up_to is not None
    assert MEAN_ROW < fit.fits_up_to < fit.tight_up_to < fit.longest_row == 2048
    padded = _fit({**job, f"{MODEL}.use_remove_padding": False})
    assert (padded.fit, padded.fits_up_to, padded.tight_up_to) == (Fit.TOO_LARGE, None, None)


def test_the_limit_is_where_the_verdict_changes():
    fit, reading = _fit(JOB), read_verl(JOB)
    shape = builtin_architecture("qwen2.5-7b")
    for tokens, verdict in ((fit.tight_up_to, Fit.TIGHT), (fit.tight_up_to + 1, Fit.TOO_LARGE)):
        job = reading.job_at(tokens)
        found = verl_fit(job, lambda _, same=job: same, shape, CARD, removes_padding=True)
        assert found.fit is verdict


def test_a_pass_has_no_more_rows_than_its_mini_batch():
    # 2 prompts x 8 responses on 8 GPUs: 2 rows of 1,024 tokens
    job = {f"{MODEL}.path": "qwen2.5-7b", "algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8}
    rows = {**job, f"{ACTOR}.ppo_mini_batch_size": 2, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 64}
    actor = read_verl_config(rows).actor
    assert (actor.max_tokens, actor.accumulates) == (2 * 1024, False)
    dynamic = {**rows, f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 1500}
    actor = read_verl_config(dynamic).actor
    assert (actor.max_tokens, actor.accumulates) == (1500, True)
    padded = read_verl({**dynamic, f"{MODEL}.use_remove_padding": False})
    assert padded.job_at(600) == padded.job
    shorter = read_verl(dynamic).job_at(600).actor
    assert (shorter.max_tokens, shorter.accumulates) == (1200, False)


def test_a_single_pass_has_no_gradients_of_earlier_ones():
    job = {f"{MODEL}.path": "qwen2.5-7b", "algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8}
    one = {**job, f"{ACTOR}.ppo_mini_batch_size": 32, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 32}
    two = {**job, f"{ACTOR}.ppo_mini_batch_size": 64, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 32}
    shape = builtin_architecture("qwen2.5-7b")
    first, second = (
        verl_estimate(read_verl_config(keys), shape, CARD).phases[VerlPhase.UPDATE_ACTOR] for keys in (one, two)
    )
    # float32 gradients of 7,615,616,512 parameters over 8 GPUs
    assert second[Component.ACTOR_GRADIENTS] - first[Component.ACTOR_GRADIENTS] == 7_615_616_512 // 8 * 4


@pytest.mark.parametrize(("offload", "stays"), [(False, True), (True, False)])
def test_the_gradients_of_megatron_go_with_its_weights(offload, stays):
    job = {f"{MODEL}.path": "qwen2.5-7b", "algorithm.adv_estimator": "grpo", f"{ACTOR}.strategy": "megatron"}
    keys = {**job, f"{ACTOR}.megatron.param_offload": offload, f"{ACTOR}.megatron.grad_offload": True}
    reading = read_verl(keys)
    assert not [note for note in reading.notes if "grad_offload" in note.text]
    found = verl_estimate(reading.job, builtin_architecture("qwen2.5-7b"), CARD)
    assert (Component.ACTOR_GRADIENTS in found.phases[VerlPhase.LOG_PROB]) == stays
    assert Component.ACTOR_GRADIENTS in found.phases[VerlPhase.UPDATE_ACTOR]
