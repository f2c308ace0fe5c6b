"""What a run leaves, whoever started it: its outcome, its readings and its record."""
