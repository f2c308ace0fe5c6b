"""What is kept on disk: one record file a trial, three parquet tables a grid, and the published figures."""
