"""Objects of S3 and of Google Cloud Storage, by fsspec."""

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import fsspec

from profiler.domain.machines.engines import Address, Scheme

Result = TypeVar("Result")

_CONNECT_S = 5
_ANSWER_S = 60

_OPTIONS: Mapping[Scheme, Mapping[str, object]] = {
    # Repeating is the task of `PatientObjects`; botocore repeats quickly what S3 throttles.
    Scheme.S3: {
        "config_kwargs": {
            "connect_timeout": _CONNECT_S,
            "read_timeout": _ANSWER_S,
            "retries": {"max_attempts": 2, "mode": "standard"},
        }
    },
    Scheme.GS: {},
}


class CloudObjects:
    """Objects below one address of a cloud."""

    def __init__(self, address: Address) -> None:
        """Ask for nothing yet.

        Args:
            address: The bucket, and the path of the objects in it.
        """
        self._root = address.path
        self._files = fsspec.filesystem(
            str(address.scheme), use_listings_cache=False, skip_instance_cache=True, **_OPTIONS[address.scheme]
        )
        if address.scheme is Scheme.S3:
            self._files.retries = 1

    def read(self, name: str) -> bytes | None:
        """Return the content of an object; None if there is none."""
        return self._checked(lambda: self.read_many([name]).get(name))

    def read_many(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """Return the contents of those that exist, read at the same time."""
        paths = {self._path(name): name for name in names}
        if not paths:
            return {}
        found = self._checked(lambda: self._files.cat(list(paths), on_error="return"))
        contents = found if isinstance(found, dict) else {next(iter(paths)): found}
        for error in contents.values():
            if isinstance(error, Exception) and not isinstance(error, FileNotFoundError):
                raise _as_os_error(error)
        return {paths[path]: content for path, content in contents.items() if isinstance(content, bytes)}

    def write(self, name: str, content: bytes) -> None:
        """Write an object, which appears when it is complete."""
        self._write(name, content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object if it does not exist (S3: `If-None-Match: *`; Google: `ifGenerationMatch=0`)."""
        try:
            self._write(name, content, mode="create")
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""
        try:
            self._checked(lambda: self._files.rm_file(self._path(name)))
        except FileNotFoundError:
            return

    def list(self, prefix: str) -> Mapping[str, str]:
        """Return the stamps of all objects whose names begin with `prefix`, 1,000 per request."""
        folder, _, start = prefix.rpartition("/")
        below = self._path(folder) if folder else self._root
        found: Mapping[str, Any] = self._checked(lambda: self._files.find(f"{below}/", prefix=start, detail=True))
        names = {path.removeprefix(f"{self._root}/"): entry for path, entry in found.items()}
        return {name: _stamp(entry) for name, entry in names.items()}

    def _write(self, name: str, content: bytes, **how: str) -> None:
        try:
            self._checked(lambda: self._files.pipe_file(self._path(name), content, **how))
        except FileNotFoundError as error:
            # gcsfs gives the address of the request only.
            said = error.strerror or "The specified bucket does not exist"
            raise FileNotFoundError(errno.ENOENT, said) from error

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _checked(self, action: Callable[[], Result]) -> Result:
        """Return what `action` returns.

        Raises:
            OSError: It fails, for whatever reason the library gives.
        """
        try:
            return action()
        except OSError:
            raise
        except Exception as error:
            raise _as_os_error(error) from error


def _stamp(entry: Mapping[str, object]) -> str:
    return str(entry.get("ETag") or entry.get("generation") or entry.get("etag") or entry.get("mtime"))


def _as_os_error(error: Exception) -> OSError:
    """Return an error of a library as one whose `strerror` is one line."""
    if isinstance(error, OSError):
        return error
    said = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
    credentials = "credentials" in type(error).__name__.lower() or "credentials" in said.lower()
    return PermissionError(13, said) if credentials else OSError(5, said)
