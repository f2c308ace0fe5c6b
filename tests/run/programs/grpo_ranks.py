"""A small job of trl's GRPO trainer, started by torchrun: by DDP, and sharded with `--fsdp`."""

import json
import os
import sys

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

rank = int(os.environ["RANK"])
words = {word: number for number, word in enumerate(("<eos>", "<pad>", *(f"w{number}" for number in range(500))))}
split = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
split.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=split, eos_token="<eos>", pad_token="<pad>")
model = Qwen2ForCausalLM(
    Qwen2Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        eos_token_id=0,
        pad_token_id=1,
    )
)
rows = Dataset.from_list(
    [{"prompt": " ".join(f"w{(7 * row + place) % 500}" for place in range(3 + row))} for row in range(8)]
)
own: list[float] = []


def reward(completions, **_columns):
    """Return the number of words of each completion, and the rank."""
    found = [float(len(each.split()) + rank) for each in completions]
    own.extend(found)
    return found


sharded = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2}} if "--fsdp" in sys.argv else {}
if sharded:
    sharded["fsdp_config"]["transformer_layer_cls_to_wrap"] = "Qwen2DecoderLayer"
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=reward,
    train_dataset=rows,
    args=GRPOConfig(
        output_dir=os.environ["TMPDIR"],
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        max_steps=1,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        bf16=True,
        **sharded,
    ),
)
trainer.train()
(logged,) = (entry for entry in trainer.state.log_history if "reward" in entry)
found = {"own": sum(own) / len(own), "reward": logged["reward"], "num_tokens": logged["num_tokens"]}
sys.stdout.write(f"RANK {rank} {json.dumps(found)}\n")  # at once: ranks share the output, which is not buffered
