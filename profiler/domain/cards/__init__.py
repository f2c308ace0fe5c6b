"""Graphics cards: what they are, what they are called, and the memory that CUDA takes on them."""
