"""The files of a job: which kind each is, and what those next to a recipe say."""
