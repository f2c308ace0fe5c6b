"""Formulas of single parts of a model: parameters, layers, the LM head, the KV cache."""
