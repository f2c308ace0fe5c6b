"""Storage on disk: one record file per trial, the parquet tables of a grid, and published figures."""
