"""OpenRLHF's loss in the closed form: logits in float32 that stay, by hand and as its own trainer has them.

And log-probabilities of earlier releases of trl, which are made of the outputs, when autocast has ended.
"""

import contextlib
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from trial_strategies import architecture

from profiler.analytical.timeline.instants import InstantName
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.analytical.timeline.sharding.zero_buckets import BUCKET_BYTES
from profiler.config.trials.specification import parse_point
from profiler.domain.errors import EXIT_OK, UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.main import main

ROOT = Path(__file__).parents[2]
MODEL, VOCABULARY, HIDDEN = "qwen2.5-0.5b", 151_936, 896


def _spec(**keys: Any) -> TrialSpec:
    point = {"backend": "emulated", "gpu": "h100-80gb", "model": MODEL, "recipe": "sft", "max_length": 11}
    point |= {"distributed_type": "deepspeed", "zero_stage": 2, "num_processes": 2, "per_device_train_batch_size": 2}
    return parse_point({**point, **keys}, architecture_of=architecture)


def _instants(**keys: Any) -> list[tuple[Phase, InstantName, dict[Category, int]]]:
    spec = _spec(**keys)
    return [
        (each.phase, each.name, {category: int(size) for category, size in each.sizes.items()})
        for each in trial_instants(spec, architecture(spec.model))
    ]


WIDE, NARROW = 2 * 11 * VOCABULARY * 4, 2 * 11 * VOCABULARY * 2
"""Logits of 2 rows of 11 tokens in float32, and in bfloat16."""


def test_logits_of_a_step_by_hand():
    logits = {name: sizes.get(Category.LOGITS, 0) for _, name, sizes in reversed(_instants(logprobs="nll_kept"))}
    # The copy of the micro-batch before, the logits, and their own copy; and its gradient in both types.
    assert logits[InstantName.FORWARD_HEAD] == WIDE + NARROW + WIDE
    assert logits[InstantName.BACKWARD_HEAD] == WIDE + WIDE + NARROW
    for name in (InstantName.FORWARD_LAYER, InstantName.BACKWARD_LAYER, InstantName.BACKWARD_END, InstantName.STEP):
        assert logits[name] == WIDE
    assert all(
        not sizes.get(Category.LOGITS) for phase, _, sizes in _instants(logprobs="nll_kept") if phase is Phase.LOAD
    )


def test_the_product_of_the_head_comes_after_its_gradient():
    first, second = (sizes for _, name, sizes in _instants(logprobs="nll_kept") if name is InstantName.BACKWARD_HEAD)
    assert second[Category.LOGITS] == WIDE + NARROW
    assert second[Category.GRADIENTS] - first[Category.GRADIENTS] == VOCABULARY * HIDDEN * 2
    assert second[Category.ACTIVATIONS] - first[Category.ACTIVATIONS] == 22 * HIDDEN * 2


def test_adapters_alone_have_no_gradient_of_the_head():
    first, second = (
        sizes for _, name, sizes in _instants(logprobs="nll_kept", tuning="lora") if name is InstantName.BACKWARD_HEAD
    )
    assert second[Category.GRADIENTS] == first[Category.GRADIENTS]


def test_a_head_of_scores_has_no_gradient_of_a_vocabulary():
    # Untied, and an embedding that no bucket holds: 152,064 x 3,584 > 500,000,000.
    keys = {"model": "qwen2.5-7b", "max_length": 64, "gradient_accumulation_steps": 1}
    reward, labelled = (
        {name: sizes for _, name, sizes in _instants(**keys, recipe=each)} for each in ("reward", "sft")
    )
    table = 152_064 * 3_584 * 2
    norm = labelled[InstantName.BACKWARD_NORM]
    assert (norm[Category.GRADIENTS], norm[Category.COMMUNICATION]) == (table, BUCKET_BYTES + table)
    norm = reward[InstantName.BACKWARD_NORM]
    assert (norm[Category.GRADIENTS], norm[Category.COMMUNICATION]) == (0, BUCKET_BYTES)
    # At the end of both, the embedding is reduced by itself.
    ends = [each[InstantName.BACKWARD_END][Category.GRADIENTS] for each in (reward, labelled)]
    assert min(ends) >= table


PAIRS = {"recipe": "dpo", "logprobs": "pairs_widened", "max_prompt_length": 5, "zero_stage": 2}


def test_logits_of_pairs_by_hand():
    found = {name: sizes.get(Category.LOGITS, 0) for _, name, sizes in _instants(**PAIRS)}
    # Two rows per pair, of which all tokens have logits: of the policy a copy that backward needs, of the reference
    # the logits and their own copy once its model has ended, and in backward a gradient as large as the copy.
    assert found[InstantName.FORWARD_HEAD] == 2 * (WIDE + NARROW)
    assert found[InstantName.SCORE_LAYER] == 2 * WIDE
    assert found[InstantName.SCORE_HEAD] == 2 * (WIDE + NARROW)
    assert found[InstantName.SCORE_LOSS] == 2 * (WIDE + NARROW + WIDE)
    assert found[InstantName.BACKWARD_HEAD] == 2 * (WIDE + WIDE)
    for name in (InstantName.FORWARD_LAYER, InstantName.BACKWARD_LAYER, InstantName.STEP):
        assert found[name] == 0


@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize(("stage", "parts"), [(0, 1), (2, 1), (3, 2)])
def test_a_reference_of_its_own_is_next_to_adapters_too(tuning, stage, parts):
    found = _instants(**PAIRS | {"tuning": tuning, "zero_stage": stage})
    references = {sizes[Category.REFERENCE] for phase, _, sizes in found if phase in (Phase.SCORE, Phase.OPTIMIZER)}
    assert references == {(494_032_768 * 2 + 256) // parts}
    assert _spec(**PAIRS | {"tuning": tuning, "zero_stage": stage}).keeps_reference_model


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"distributed_type": "multi_gpu", "zero_stage": None}, "is the loss of OpenRLHF, which trains by DeepSpeed"),
        ({"precompute_ref_log_probs": True}, "is no setting of the program whose loss is logprobs=pairs_widened"),
        ({"recipe": "kto"}, "is not a way of the trainer of recipe=kto"),
    ],
)
def test_the_loss_of_pairs_is_of_one_program(keys, problem):
    with pytest.raises(UsageError, match=problem):
        _spec(**PAIRS | keys)


START = "deepspeed --num_gpus {gpus} --module openrlhf.cli.train_{trainer} --model.model_name_or_path {model}"
COMMON = "--data.max_len {length} --train.batch_size {whole} --train.micro_batch_size {rows} --ds.zero_stage {stage}"
CHECKPOINTS, PACKED = "--model.gradient_checkpointing_enable", "--ds.packing_samples"
QWEN = "Qwen/Qwen2.5-0.5B"
TWO_PAIRS = {"trainer": "dpo", "model": QWEN, "length": 512, "whole": 16, "rows": 2, "stage": 2}
LARGER = {"model": "Qwen/Qwen2.5-1.5B"}
JOBS = {
    "SFT, full, Llama-3-8B, ZeRO-2": (
        {"trainer": "sft", "model": "meta-llama/Meta-Llama-3-8B", "length": 772, "whole": 256, "rows": 2, "stage": 2},
        [PACKED, CHECKPOINTS],
    ),
    "SFT, full, Qwen2.5-0.5B, ZeRO-2": (
        {"trainer": "sft", "model": QWEN, "length": 512, "whole": 16, "rows": 2, "stage": 2},
        [CHECKPOINTS],
    ),
    "SFT, full, Qwen2.5-0.5B, ZeRO-2, one card": (
        {"trainer": "sft", "model": QWEN, "length": 512, "whole": 8, "rows": 2, "stage": 2},
        [PACKED, CHECKPOINTS],
    ),
    "SFT, full, Qwen2.5-0.5B, ZeRO-2, no checkpointing": (
        {"trainer": "sft", "model": QWEN, "length": 512, "whole": 16, "rows": 4, "stage": 2},
        [PACKED],
    ),
    "SFT, full, Qwen2.5-0.5B, ZeRO-3": (
        {"trainer": "sft", "model": QWEN, "length": 512, "whole": 16, "rows": 2, "stage": 3},
        [PACKED, CHECKPOINTS],
    ),
    "SFT, LoRA, Qwen2.5-0.5B, ZeRO-2": (
        {"trainer": "sft", "model": QWEN, "length": 512, "whole": 16, "rows": 2, "stage": 2},
        [PACKED, CHECKPOINTS, "--ds.lora.rank 16 --ds.lora.alpha 32"],
    ),
    "reward model, full, Qwen2.5-0.5B, ZeRO-2": (
        {"trainer": "rm", "model": QWEN, "length": 256, "whole": 16, "rows": 2, "stage": 2},
        [PACKED, CHECKPOINTS],
    ),
    "reward model, LoRA, Qwen2.5-0.5B, ZeRO-2": (
        {"trainer": "rm", "model": QWEN, "length": 256, "whole": 16, "rows": 2, "stage": 2},
        [PACKED, CHECKPOINTS, "--ds.lora.rank 16"],
    ),
    "reward model, full, Qwen2.5-7B, ZeRO-2": (
        {"trainer": "rm", "model": "Qwen/Qwen2.5-7B", "length": 256, "whole": 16, "rows": 2, "stage": 2},
        [PACKED, CHECKPOINTS],
    ),
    "DPO, full, Qwen2.5-0.5B, ZeRO-2": (
        {"trainer": "dpo", "model": QWEN, "length": 256, "whole": 16, "rows": 1, "stage": 2},
        [PACKED, CHECKPOINTS],
    ),
    "DPO, full, Qwen2.5-0.5B, 2 pairs, ZeRO-2, one card": (TWO_PAIRS, [PACKED, CHECKPOINTS]),
    "DPO, full, Qwen2.5-0.5B, 2 pairs, ZeRO-2, not packed, no checkpointing": (TWO_PAIRS, []),
    "DPO, full, Qwen2.5-0.5B, 2 pairs, ZeRO-2, ref.offload": (TWO_PAIRS, [PACKED, CHECKPOINTS, "--ref.offload"]),
    "DPO, full, Qwen2.5-0.5B, 2 pairs, ZeRO-3": (TWO_PAIRS | {"stage": 3}, [PACKED, CHECKPOINTS]),
    "DPO, LoRA, Qwen2.5-0.5B, 2 pairs, ZeRO-3": (TWO_PAIRS | {"stage": 3}, [PACKED, CHECKPOINTS, "--ds.lora.rank 16"]),
    "DPO, full, Qwen2.5-1.5B, 2 pairs, ZeRO-2": (TWO_PAIRS | LARGER, [PACKED, CHECKPOINTS]),
    "DPO, full, Qwen2.5-1.5B, 2 pairs, ZeRO-3, not packed": (TWO_PAIRS | LARGER | {"stage": 3}, [CHECKPOINTS]),
    "DPO, LoRA, Qwen2.5-1.5B, 2 pairs, ZeRO-2": (TWO_PAIRS | LARGER, [PACKED, CHECKPOINTS, "--ds.lora.rank 16"]),
}
"""The commands of kept runs whose loss is in the closed form; all rows have `length` tokens there."""

WITHOUT_BOTH = "DPO, full, Qwen2.5-0.5B, 2 pairs, ZeRO-2, not packed, no checkpointing"
"""The one run that is more than 0.75 % away: 1.2 %."""

RUNS = [
    row
    for row in csv.DictReader((ROOT / "results/reference/scripts/commands.csv").read_text().splitlines())
    if row["trainer"].startswith("OpenRLHF") and row["job"] in JOBS
]


def test_every_job_ran():
    assert [row["job"] for row in RUNS] == list(JOBS)


@pytest.mark.parametrize("row", RUNS, ids=lambda row: row["job"])
def test_a_run_of_its_own_trainer_needs_what_is_counted(row, tmp_path):
    sizes, options = JOBS[row["job"]]
    words = [START.format(gpus=row["cards"], **sizes), COMMON.format(**sizes), *options]
    (tmp_path / "run.sh").write_text(" \\\n  ".join(words) + "\n")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([f"config={tmp_path / 'run.sh'}", "gpu=h100-80gb", "format=json"]) == EXIT_OK
    found = json.loads(out.getvalue())
    for kind in ("allocated", "reserved"):
        assert found[f"peak_{kind}_bytes"] == int(row[f"estimated_{kind}_bytes"])
    most = 0.0125 if row["job"] == WITHOUT_BOTH else 0.0075
    assert found["peak_allocated_bytes"] == pytest.approx(int(row["allocated_bytes"]), rel=most)


# ---- earlier releases of trl -----------------------------------------------------------------------------------------

_COMPLETIONS = {"recipe": "grpo", "max_length": None, "distributed_type": "no", "zero_stage": None, "num_processes": 1}
_COMPLETIONS |= {"max_prompt_length": 8, "max_completion_length": 16, "num_generations": 2, "lengths": "forced"}
_LAYERS, _HEAD = 24 * (896 * (896 + 128 + 128 + 896) + 3 * 896 * 4864) * 2, VOCABULARY * HIDDEN * 2
"""What autocast makes of float32 weights of layers, and of the head, in bfloat16."""


@pytest.mark.parametrize("logprobs", ["selective", "selective_in_place", "selective_kernel"])
def test_autocast_ends_before_log_probabilities_are_made(logprobs):
    of = {
        dtype: [sizes for _, name, sizes in _instants(**_COMPLETIONS, logprobs=logprobs, dtype=dtype)
                if name is InstantName.FORWARD_HEAD]
        for dtype in ("float32", "bfloat16")
    }  # fmt: skip
    hidden = 2 * 2 * 24 * HIDDEN
    more = [
        wide[Category.ACTIVATIONS] - narrow[Category.ACTIVATIONS] for wide, narrow in zip(*of.values(), strict=True)
    ]
    # The copy of the head is kept for backward; inputs of 24 layers and the outputs are float32, and the input of the
    # head is not.
    assert more == [_LAYERS + _HEAD + 25 * hidden + hidden, _HEAD + 25 * hidden + hidden]
    in_model, after = (sizes[Category.LOGITS] for sizes in of["float32"])
    assert in_model == 2 * 17 * VOCABULARY * 2 < after


def test_autocast_ends_before_scores_are_made():
    of = [
        [sizes for _, name, sizes in _instants(**_COMPLETIONS, logprobs="selective", beta=0.1, dtype=dtype)
         if name is InstantName.SCORE_HEAD]
        for dtype in ("float32", "bfloat16")
    ]  # fmt: skip
    hidden = 2 * 2 * 24 * HIDDEN
    more = [wide[Category.ACTIVATIONS] - narrow[Category.ACTIVATIONS] for wide, narrow in zip(*of, strict=True)]
    assert more == [_LAYERS + _HEAD + hidden, hidden]


def test_the_fused_head_is_under_autocast():
    names = [name for _, name, _ in _instants(**_COMPLETIONS, beta=0.1, dtype="float32")]
    assert names.count(InstantName.FORWARD_HEAD) == names.count(InstantName.SCORE_HEAD) == 1
