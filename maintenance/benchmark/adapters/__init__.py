"""Adapters: what is asked, the formulas that run here, and `packages` for those that run by their package."""
