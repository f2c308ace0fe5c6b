"""Parquet tables of runs of every kind: columns, rows, laws, and files."""
