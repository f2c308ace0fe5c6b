"""`python -m profiler.report`: table, pages and figures from stored results."""
