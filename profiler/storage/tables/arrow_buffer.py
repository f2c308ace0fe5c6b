"""Content of parquet files that belongs to Arrow alone.

Arrow reads in threads, and a thread may release the content a moment after the table has been read. If the content is a
Python object, the thread then waits for the interpreter; if the interpreter is about to end, the process is aborted.
"""

import pyarrow as pa


def arrow_buffer(content: bytes) -> pa.Buffer:
    """Return a copy of `content` that no thread needs Python to release."""
    copied = pa.BufferOutputStream()
    copied.write(content)
    return copied.getvalue()
