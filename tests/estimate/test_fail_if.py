"""`fail_if`: exit code 4 for scripts, in an estimate, `solve`, `advise` and `run`."""

import pytest

from profiler.advise.main import main as advise
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK
from profiler.estimate.main import main as estimate
from profiler.solve.main import main as solve

FITS = ("model=qwen2.5-7b", "tuning=lora", "gpu=h100")
TIGHT = ("model=qwen2.5-7b", "tuning=lora", "gpu=18.2GiB")
TOO_LARGE = ("model=qwen2.5-7b", "tuning=lora", "gpu=t4")
VERL = ("config=verl", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B", "algorithm.adv_estimator=grpo")


@pytest.mark.parametrize(
    ("words", "of_tight", "of_too_large"),
    [
        (FITS, EXIT_OK, EXIT_OK),
        (TIGHT, EXIT_ANSWER_IS_NO, EXIT_OK),
        (TOO_LARGE, EXIT_ANSWER_IS_NO, EXIT_ANSWER_IS_NO),
        ((*FITS, "per_device_train_batch_size=4,4096"), EXIT_ANSWER_IS_NO, EXIT_ANSWER_IS_NO),
        (("model=qwen2.5-7b", "gpu=any"), EXIT_OK, EXIT_OK),
        (("model=qwen2.5-72b", "dtype=float32", "gpu=any"), EXIT_ANSWER_IS_NO, EXIT_ANSWER_IS_NO),
        (
            ("model=qwen2.5-0.5b", "gpu=t4", "attn_implementation=flash_attention_2", "backend=cuda"),
            EXIT_ANSWER_IS_NO,
            EXIT_ANSWER_IS_NO,
        ),
        ((*FITS, "host=1TiB"), EXIT_OK, EXIT_OK),
        ((*FITS, "host=1GiB"), EXIT_ANSWER_IS_NO, EXIT_ANSWER_IS_NO),
        ((*FITS, "host=2.5GiB"), EXIT_ANSWER_IS_NO, EXIT_OK),
        ((*VERL, "gpu=b300"), EXIT_OK, EXIT_OK),
        ((*VERL, "gpu=t4"), EXIT_ANSWER_IS_NO, EXIT_ANSWER_IS_NO),
    ],
)
def test_an_estimate_ends_with_its_verdict(capsys, words, of_tight, of_too_large):
    assert estimate(words) == EXIT_OK
    said = capsys.readouterr().out
    assert estimate([*words, "fail_if=tight"]) == of_tight
    assert estimate([*words, "fail_if=does_not_fit"]) == of_too_large
    assert capsys.readouterr().out == said * 2
    assert estimate([*words, "fail_if=tight", "format=json"]) == of_tight


@pytest.mark.parametrize("main", [solve, advise])
def test_nothing_fits(main):
    key = ["max_completion_length", "confirm=false"] if main is solve else []
    assert main([*key, "model=qwen2.5-7b", "gpu=1GiB"]) == EXIT_OK
    assert main([*key, "model=qwen2.5-7b", "gpu=1GiB", "fail_if=does_not_fit"]) == EXIT_ANSWER_IS_NO


def test_the_smallest_card():
    assert solve(["gpu", "model=qwen2.5-72b", "dtype=float32", "fail_if=does_not_fit"]) == EXIT_ANSWER_IS_NO
    assert solve(["gpu", "model=qwen2.5-7b", "fail_if=does_not_fit"]) == EXIT_OK
