"""The names that other programs have for keys of trl: one table per program, with the version it was read from."""
