"""Environments with torch's CUDA build and without the vendor's libraries: made, made smaller, and found again."""
