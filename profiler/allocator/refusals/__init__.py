"""Out-of-memory errors: what the model refuses, in torch's words, and torch's words read back."""
