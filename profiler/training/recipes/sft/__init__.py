"""The recipe `sft`: trl's `SFTTrainer`."""
