"""How the GPUs of a job share a model: one type, and a value per way to do it."""
