"""NVIDIA's driver: its calls by a narrow protocol, the one file that makes them, and the GPUs that it shows."""
