"""Models: what a config.json says, which models are known, and what transformers refuses of them."""
