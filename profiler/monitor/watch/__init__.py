"""A command that is watched, from its start to its report."""
