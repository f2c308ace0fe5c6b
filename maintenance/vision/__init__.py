"""Simulated trials of vision-language models, compared with the closed form."""
