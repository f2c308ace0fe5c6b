"""The command that says what a trial needs of a GPU, without running it."""
