"""The recipe `grpo`: trl's `GRPOTrainer`."""
