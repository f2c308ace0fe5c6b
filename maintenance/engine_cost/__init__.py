"""What an engine adds to each trial."""
