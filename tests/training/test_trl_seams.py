"""Methods of trl and transformers that the recipes' trainers override: a test fails when one moves."""

import inspect

import pytest
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer, SFTTrainer
from trl.trainer import grpo_trainer


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_generate_single_turn", ["self", "prompt_ids", "images", "multimodal_fields", "num_generations"]),
        (
            "_get_per_token_logps_and_entropies",
            ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"],
        ),
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        ("compute_loss", ["self", "model", "inputs", "return_outputs", "num_items_in_batch"]),
    ],
)
def test_signatures_of_trl(method: str, parameters: list[str]) -> None:
    function = inspect.unwrap(getattr(GRPOTrainer, method))
    assert list(inspect.signature(function).parameters)[: len(parameters)] == parameters


def test_transformers_clips_before_the_optimizer_steps() -> None:
    source = inspect.getsource(Trainer._run_epoch)
    assert source.index("self._clip_grad_norm(model)") < source.index("self.optimizer.step()")


def test_backward_follows_the_loss() -> None:
    source = inspect.getsource(Trainer.training_step)
    assert source.index("self.compute_loss(") < source.index("self.accelerator.backward(loss")


def test_the_reference_is_made_by_a_function_of_the_trainers_module() -> None:
    assert callable(grpo_trainer.create_model_from_path)
    assert "create_model_from_path(get_config_model_id(" in inspect.getsource(GRPOTrainer.__init__)


def test_trl_has_no_prompt_length_any_more() -> None:
    assert not hasattr(GRPOConfig, "max_prompt_length")


def test_the_loss_of_sft_has_the_signature_of_grpo() -> None:
    parameters = [list(inspect.signature(owner.compute_loss).parameters) for owner in (SFTTrainer, GRPOTrainer)]
    assert parameters[0] == parameters[1]


def test_the_micro_batches_of_a_step_are_loaded_at_once_before_its_forward() -> None:
    source = inspect.getsource(Trainer._run_epoch)
    assert source.index("self.get_batch_samples(") < source.index("self.training_step(")
