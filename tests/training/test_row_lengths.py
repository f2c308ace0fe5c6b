"""Rows of given lengths reach the trainer's micro-batches as the grouping says."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from matrix import further
from simulating import LORA, small_spec

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.step_shape import MicroBatch
from profiler.domain.trials.recipe import OF_DATA, Recipe
from profiler.domain.trials.trial import Rollout, RowLengths, TrialSpec, Tuning
from profiler.simulation.session import Extrapolation, Simulation
from profiler.training.announced_steps import AnnouncedSteps
from profiler.training.recipes.step_grouping import step_shapes
from profiler.training.run import run_training

ROWS = RowLengths(
    prompts=(3, 8, 5, 2, 4, 4, 4, 4), completions=(4, 9, 2, 11, 3, 1, 7, 5, 6, 6, 6, 2, 6, 6, 6, 6), shuffles=(5, 2, 9)
)
GENERATED: dict[str, Any] = {
    "tuning": Tuning.LORA, **LORA, "rollout": Rollout.SYNTHETIC, "steps": 4, "per_device_train_batch_size": 2,
    "num_generations": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4,
}  # fmt: skip
OF_ROWS: dict[str, Any] = {
    "tuning": Tuning.LORA, **LORA, "recipe": Recipe.SFT, "max_length": 12, "steps": 3,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
}  # fmt: skip


PREFERRED: dict[str, Any] = OF_ROWS | {"max_prompt_length": 4, "beta": 0.1}


def seen_in(inputs: dict[str, Any], spec: TrialSpec) -> MicroBatch:
    if spec.recipe in OF_DATA and spec.recipe is not Recipe.SFT:
        rows = inputs["input_ids"].shape[0]
        is_good = inputs.get("label", torch.arange(rows) < rows // 2)
        found = _of_masks(inputs, "", *([] if spec.recipe is Recipe.REWARD else [is_good, ~is_good]))
        has_neighbours = "KL_input_ids" in inputs
        return replace(found, neighbours=_of_masks(inputs, "KL_", is_good | True) if has_neighbours else None)
    if spec.recipe is Recipe.SFT:
        ids, mask, scored = inputs["input_ids"], inputs["attention_mask"].bool(), inputs["labels"][:, 1:] != -100
        widths: tuple[int, ...] = (ids.shape[1],)
        is_padded = not bool(mask.all())
    else:
        ids, scored = inputs["prompt_ids"], inputs["completion_mask"].bool()
        widths = (ids.shape[1], scored.shape[1])
        is_padded = not bool(scored.all()) or not bool(inputs["prompt_mask"].all())
    return MicroBatch(rows=ids.shape[0], widths=widths, scored=(int(scored.sum()),), padded=(is_padded,))


def _of_masks(inputs: dict[str, Any], prefix: str, *parts: torch.Tensor) -> MicroBatch:
    mask = inputs[f"{prefix}attention_mask"].bool()
    return MicroBatch(
        rows=mask.shape[0],
        widths=(mask.shape[1],),
        scored=tuple(int(inputs[f"{prefix}completion_mask"][part].sum()) for part in parts),
        padded=(not bool(mask.all()),),
        chosen=int(parts[0].sum()) if parts else 0,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        GENERATED,
        OF_ROWS,
        PREFERRED | {"recipe": Recipe.KTO},
        *further(
            GENERATED | {"recipe": Recipe.RLOO}, PREFERRED | {"recipe": Recipe.DPO}, OF_ROWS | {"recipe": Recipe.REWARD}
        ),
    ],
    ids=lambda keys: str(keys.get("recipe", "grpo")),
)
def test_micro_batches_have_the_rows_of_their_group(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    spec, seen = small_spec(**keys), []
    loss = AnnouncedSteps.compute_loss

    def noticed(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(seen_in(inputs, spec))
        return loss(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(AnnouncedSteps, "compute_loss", noticed)
    session = Simulation(KNOWN_GPUS["h100-80gb"], extrapolation=Extrapolation(steps=False))
    run_training(spec, BUILTIN_MODELS["tiny"].config, session, rows=ROWS)
    steps = step_shapes(spec, ROWS)
    assert seen == [batch for step in steps for batch in step.micro_batches]
    assert len({batch.widths for batch in seen}) > 1
    trace, is_cache = session.recorder.finished(), Category.KV_CACHE
    shapes = [trace.sites[trace.site_of[block]].shape for block, of in enumerate(trace.categories) if of is is_cache]
    # The last token of the longest completion, 8 + 11 tokens, needs no place.
    assert max((shape[2] for shape in shapes), default=18) == 18


def test_completions_that_end_before_the_last_token() -> None:
    """By hand: the first generation has 4, 9, 2 and 11 tokens. Generated together all but the 11 end; vLLM goes on."""
    spec = small_spec(**GENERATED | {"max_completion_length": 16, "steps_per_generation": 2})
    ended = [[step.ended for step in step_shapes(each, ROWS)] for each in (spec, replace(spec, use_vllm=True))]
    assert [found[0] for found in ended] == [3, 4]
    shorter = replace(spec, use_vllm=True, max_completion_length=11)
    assert step_shapes(shorter, ROWS)[0].ended == 3
