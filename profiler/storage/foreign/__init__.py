"""Files and pages of others: models, snapshots, prices, published figures, the Hugging Face hub."""
