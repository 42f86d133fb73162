"""Reads a user's configuration, and replaces it in one step."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path

from extproc.envoy.problems import ConfigurationError


def read(path: Path) -> str:
    """Return the text of a file with its line ends. Raises ConfigurationError, OSError."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"byte {error.start} is not UTF-8") from None


def replace(path: Path, text: str) -> None:
    """Replace a file completely or not at all. Its mode stays. Raises OSError."""
    path = path.resolve()
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        status = path.stat()
        os.chmod(draft, status.st_mode & 0o7777)
        with suppress(OSError):
            # Only root can keep a different owner.
            os.chown(draft, status.st_uid, status.st_gid)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def diff(path: Path, before: str, after: str) -> str:
    """Return a unified diff, or "" if nothing differs."""
    name = str(path).lstrip("/")
    lines = unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
