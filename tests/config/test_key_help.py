"""The entries of `--help`: every key, with its unit and its default."""

import pytest

from profiler.config.options.run_options import RUN_KEYS, entry, run_options_help, trial_keys_help
from profiler.domain.trials.trial import SPEC_KEYS


@pytest.mark.parametrize(("text", "keys"), [(trial_keys_help(given="auto"), SPEC_KEYS), (run_options_help(), RUN_KEYS)])
def test_every_key_has_one_entry_with_its_default(text, keys):
    assert [line.split()[0] for line in text.splitlines() if line[2] != " "] == list(keys)
    assert text.count("]\n") == len(keys)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "line",
    [
        "  max_prompt_length             length of every prompt [256 tokens]\n",
        "  num_generations               completions per prompt [4]\n",
        "  model                         a built-in name, a local path or a hub id [required]\n",
        "  lora_alpha                    LoRA's alpha [twice lora_rank]\n",
        "  recipe                        which trainer runs (grpo, rloo, sft, dpo, kto, reward) [grpo]\n",
        "  vllm_gpu_memory_utilization   part of the card that vLLM takes [0.3]\n",
    ],
)
def test_defaults_are_those_that_a_user_gets(line):
    assert line in trial_keys_help(given="auto")


def test_options_have_their_units():
    assert "  timeout_s                     time limit of one trial [1800 s]\n" in run_options_help()
    assert "[one per CPU core if all are" in run_options_help()


def test_a_long_meaning_continues_below_itself():
    lines = entry("key", "word " * 30, "1", "tokens").splitlines()
    assert len(lines) > 1
    assert all(line.startswith(" " * 32) for line in lines[1:])
    assert lines[-1].endswith("[1 tokens]")
