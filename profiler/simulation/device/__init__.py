"""The `meta` device as a GPU: the dispatch mode, values that come back to the host, and a cache of operations."""
