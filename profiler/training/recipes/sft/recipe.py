"""Supervised fine-tuning: what `SFTTrainer` needs of a trial.

The loss keeps trl's default, which decides much of the memory. Findings in trl 1.16 (`trl/trainer/sft_config.py` and
`sft_trainer.py`, `add_fused_lm_head` in `trl/trainer/utils.py`, `trl/kernels/chunked_logprob.py`):

- `loss_type="nll"` is the default. `"chunked_nll"` is a deprecated alias: `SFTConfig` replaces it by `"nll"` with a
  warning.
- The trainer adds a fused LM head to the model and never makes the logits [rows, tokens, vocabulary]. On CUDA only the
  positions with a label are projected, tile by tile, into one buffer of [min(positions, 4096), 32768] in the data type
  of autocast. Per scored position, forward has seven float32 vectors of online statistics, and the entropy and the
  top-1 flag that trl logs. Backward calculates each tile again and accumulates in float32: [positions, hidden], and
  [vocabulary, hidden] where the weight of the LM head is trained.
- It is the head of `GRPOTrainer`, without its completion mask: by default every token but the first of a row has a
  label. Of prompt-completion data only the completion has labels.
- `"dft"` multiplies the loss per token by the detached probability: float32 tensors of [rows, tokens - 1] more, and no
  larger head.
- `label_smoothing_factor` and `compute_loss_func` need the logits: trl runs the unfused forward for the loss, and a
  second, fused one for its metrics. This recipe uses neither.
- A call without `fused_lm_head` is that of transformers, which computes the loss of all logits, as in trl up to 1.6
  (`logprobs=nll` and its kin).
"""

from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import SFTConfig

from profiler.domain.memory import Phase
from profiler.domain.trials.trial import TrialSpec
from profiler.training.arguments import common_arguments, lora_config
from profiler.training.recipes.recipe import TrainerParts
from profiler.training.recipes.sft.rows import build_rows, sequence_length
from profiler.training.recipes.sft.trainer import ProfiledSFTTrainer
from profiler.training.session import Session


class Sft:
    """Trains on rows of tokens. Keys of generation, rewards and reference do not apply."""

    phases = (Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)

    def arguments(self, spec: TrialSpec, session: Session, output_dir: Path) -> Any:
        """Return the `SFTConfig` of the trial.

        Rows are used in their order and not shuffled, so that every micro-batch has a row of the full length.
        """
        return SFTConfig(
            **common_arguments(spec, use_cpu=session.use_cpu, output_dir=output_dir),
            max_length=sequence_length(spec),
            activation_offloading=spec.activation_offloading,
            train_sampling_strategy="sequential",
            # The rows are tokens already, cut to `max_length`.
            dataset_kwargs={"skip_prepare_dataset": True},
        )

    def data(self, spec: TrialSpec, tokenizer: Any) -> Dataset:
        """Return the rows."""
        return build_rows(spec, tokenizer)

    def trainer(self, parts: TrainerParts) -> ProfiledSFTTrainer:
        """Return the trainer; there is no reference model."""
        return ProfiledSFTTrainer(
            observer=parts.session,
            spec=parts.spec,
            model=parts.model,
            args=parts.arguments,
            train_dataset=parts.data,
            processing_class=parts.tokenizer,
            peft_config=lora_config(parts.spec),
        )
