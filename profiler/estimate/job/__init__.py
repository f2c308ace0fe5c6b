"""The job that a command line and its files describe."""
