"""Files of JSON that are protected by a checksum, in one form: keys sorted, no spaces."""

import hashlib
import json

from profiler.config.foreign_text import parse_json
from profiler.storage.files.typed_json import JSON

_START = b'{"checksum":"'
_LENGTH = len("sha256:") + hashlib.sha256().digest_size * 2


def with_checksum(content: dict[str, JSON]) -> bytes:
    """Return the file of `content`: its canonical form, with the checksum as first key."""
    file = canonical(content)
    return _START + _digest(file).encode() + b'",' + file[1:]


def parse_checksummed(file: bytes, *, most_bytes: int) -> tuple[JSON, bool]:
    r"""Return the content of a file with its checksum, and whether it is byte for byte what `with_checksum` wrote.

    What this program wrote is not counted node by node, which takes as long as reading it. A name of a file or a word
    of a command need not be UTF-8; its other bytes are spelled out (``\udcff``): no table or page can have them.
    """
    own = _is_as_written(file)
    content = json.loads(file) if own else parse_json(file, most_bytes=most_bytes)
    return (_in_utf8(content) if b"\\ud" in file else content), own


def _in_utf8(content: JSON) -> JSON:
    if isinstance(content, str):
        return content.encode(errors="backslashreplace").decode()
    if isinstance(content, list):
        return [_in_utf8(each) for each in content]
    if isinstance(content, dict):
        return {key: _in_utf8(value) for key, value in content.items()}
    return content


def checksum_of(content: dict[str, JSON]) -> str:
    """Return the checksum of `content`."""
    return _digest(canonical(content))


def canonical(content: dict[str, JSON]) -> bytes:
    """Return the only form of the content that counts."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(canonical: bytes) -> str:
    return "sha256:" + hashlib.sha256(canonical).hexdigest()


def _is_as_written(file: bytes) -> bool:
    """Return whether the file is byte for byte what `with_checksum` wrote.

    Files with other spaces or another order of keys, as earlier versions wrote them, have to be made canonical first,
    which takes longer than reading them.
    """
    start, end = len(_START), len(_START) + _LENGTH
    if not file.startswith(_START) or file[end : end + 2] != b'",':
        return False
    return file[start:end] == _digest(b"{" + file[end + 2 :]).encode()
