"""No thread of Arrow holds an object of Python, which it could release only before the interpreter ends."""

import ast
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from profiler.storage.tables.schema import arrow_buffer

READERS = {"pq.read_table", "pq.read_schema", "pq.ParquetFile"}
SOURCES = {
    # Files that Arrow opened itself, by `pa.OSFile`: of `TableFile`, of `open_table_file`, and of a spool.
    "self.content",
    "content",
    "source",
    "pa.BufferReader(content)",
    "pa.BufferReader(arrow_buffer(content))",
    "pa.BufferReader(arrow_buffer(table))",
}


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 40])
def test_the_content_is_copied_and_no_object_of_python_is_kept(content):
    content = bytearray(content)
    before = sys.getrefcount(content)
    buffer = arrow_buffer(content)
    assert sys.getrefcount(content) == before
    assert buffer.to_pybytes() == bytes(content)
    kept = pa.py_buffer(content)
    assert sys.getrefcount(content) > before
    del kept


def test_arrow_reads_only_from_such_buffers():
    found = set()
    for path in (Path(__file__).parents[2] / "profiler").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in READERS:
                found.add(ast.unparse(call.args[0]))
    assert found == SOURCES
