"""The files that the Dockerfile copies into the image's builder."""

from __future__ import annotations

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]


def copy_builder_files(target: Path) -> None:
    """Copy what the builder has in its working directory: COPY lines, less .dockerignore."""
    for source in _copied():
        paths = [ROOT / source, *(ROOT / source).rglob("*")]
        for path in paths:
            relative = path.relative_to(ROOT)
            if path.is_file() and _reaches_builder(relative.as_posix()):
                (target / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / relative)


def _copied() -> list[str]:
    """Return the sources of the COPY lines that read the checkout."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def _reaches_builder(path: str) -> bool:
    """Apply .dockerignore: the last pattern that matches the path or a parent decides."""
    parts = PurePosixPath(path)
    names = [path, *(parent.as_posix() for parent in parts.parents)]
    reaches = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        tried = parts.parts if "**/" in line else names
        if line and not line.startswith("#") and any(fnmatch(name, pattern) for name in tried):
            reaches = line.startswith("!")
    return reaches
