"""Seams of the libraries of Hugging Face."""
