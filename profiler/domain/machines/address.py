"""Addresses of results that several machines share: ``s3://bucket/path``, ``gs://bucket/path``, ``file:///folder``."""

from dataclasses import dataclass
from enum import StrEnum

_MARK = "://"


class Scheme(StrEnum):
    """Kinds of shared stores."""

    S3 = "s3"
    GS = "gs"
    FILE = "file"
    """A folder that every machine has mounted."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """A place in a shared store."""

    scheme: Scheme
    path: str
    """``bucket/path``, or the absolute path of a folder; without a slash at its end."""

    def __str__(self) -> str:
        return f"{self.scheme}{_MARK}{self.path}"

    def __truediv__(self, name: str) -> "Address":
        return Address(scheme=self.scheme, path=f"{self.path}/{name}")

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rpartition("/")[2]


def is_address(text: str) -> bool:
    """Return whether `text` is meant as an address and not as a path."""
    return _MARK in text


def address_of(text: str) -> Address | None:
    """Return the address that `text` is; None if it is not one."""
    scheme, _, place = text.partition(_MARK)
    path = place.rstrip("/")
    if scheme not in list(Scheme) or not path or any(part in ("", ".", "..") for part in path.lstrip("/").split("/")):
        return None
    if path.startswith("/") != (scheme == Scheme.FILE):
        return None
    return Address(scheme=Scheme(scheme), path=path)


ADDRESS_FORMS = "s3://bucket/path, gs://bucket/path or file:///folder"
