"""What is kept on disk: one record file a trial, the parquet tables of a grid, and the published figures."""
