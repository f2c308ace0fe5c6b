"""Units of memory and their texts. The only file that contains 1024."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def as_gib(size_bytes: float) -> float:
    """Return `size_bytes` in GiB (2**30 bytes), for axes and tables."""
    return size_bytes / GIB


def gib_text(size_bytes: float, digits: int = 1) -> str:
    """Return `size_bytes` as a text in GiB, such as ``"12.3 GiB"``."""
    return f"{as_gib(size_bytes):.{digits}f} GiB"


def mib_text(size_bytes: float, digits: int = 1) -> str:
    """Return `size_bytes` as a text in MiB, such as ``"894.0 MiB"``."""
    return f"{size_bytes / MIB:.{digits}f} MiB"
