"""GRPO and RLOO: what `GRPOTrainer` and `RLOOTrainer` need of a trial."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, RLOOConfig

from profiler.domain.memory import Phase
from profiler.domain.trials.trial import TrialSpec
from profiler.training.arguments import common_arguments, lora_config
from profiler.training.recipes.grpo.critic import Critic
from profiler.training.recipes.grpo.prompts import build_prompts
from profiler.training.recipes.grpo.reference import reference_from_config
from profiler.training.recipes.grpo.reward import count_words
from profiler.training.recipes.grpo.trainer import ProfiledGeneration, ProfiledGRPOTrainer, ProfiledRLOOTrainer
from profiler.training.recipes.recipe import TrainerParts
from profiler.training.rollouts.registry import rollout_engine
from profiler.training.session import Session


class Grpo:
    """Generates completions, scores and rewards them, and trains on them."""

    phases = (
        Phase.LOAD,
        Phase.ROLLOUT,
        Phase.SCORE,
        Phase.REWARD,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
    )

    _config: type[Any] = GRPOConfig
    _trainer: type[ProfiledGeneration] = ProfiledGRPOTrainer

    def arguments(self, spec: TrialSpec, session: Session, output_dir: Path) -> Any:
        """Return trl's configuration of the trial."""
        return self._config(
            **{
                **common_arguments(spec, use_cpu=session.use_cpu, output_dir=output_dir),
                **rollout_engine(spec, session).arguments(),
                "num_generations": spec.num_generations,
                "max_completion_length": spec.max_completion_length,
                "beta": spec.beta,
                **_batches(spec),
            }
        )

    def data(self, spec: TrialSpec, tokenizer: Any) -> Dataset:
        """Return the prompts."""
        return build_prompts(spec, tokenizer)

    def trainer(self, parts: TrainerParts) -> ProfiledGeneration:
        """Return the trainer, with a reference model where `beta` needs one."""
        spec, session = parts.spec, parts.session
        rollout = rollout_engine(spec, session)
        folder = Path(parts.arguments.output_dir)
        with (
            reference_from_config(spec, parts.config, session),
            rollout.starting(model=parts.model, tokenizer=parts.tokenizer, folder=folder),
        ):
            return self._trainer(
                spec=spec,
                observer=session,
                rollout=rollout,
                critic=Critic(spec, parts.config, session, parts.arguments) if spec.critic else None,
                model=parts.model,
                reward_funcs=count_words,
                args=parts.arguments,
                train_dataset=parts.data,
                processing_class=parts.tokenizer,
                peft_config=lora_config(spec),
            )


def _batches(spec: TrialSpec) -> dict[str, int]:
    """Return trl's sizes of batches. Rows that are split by tokens reach the loss an optimizer step at a time."""
    rows, accumulation, generation = (
        spec.per_device_train_batch_size,
        spec.gradient_accumulation_steps,
        spec.steps_per_generation,
    )
    if spec.use_dynamic_bsz:
        rows, accumulation, generation = rows * accumulation, 1, generation // accumulation
    return {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": generation,
    }


class Rloo(Grpo):
    """As GRPO; the loss is one number per row, and the policy always scores its own completions."""

    _config = RLOOConfig
    _trainer = ProfiledRLOOTrainer
