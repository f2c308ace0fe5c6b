"""The set: its schema, its rows as jobs of this project, and the jobs that are still to be emulated."""
