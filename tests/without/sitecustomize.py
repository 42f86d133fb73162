"""Hides the packages that EXTPROC_TEST_HIDDEN names, as if they were not installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HIDDEN = frozenset(os.environ.get("EXTPROC_TEST_HIDDEN", "").split())


class Finder(PathFinder):
    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in HIDDEN:
            return None
        return super().find_spec(fullname, path, target)


sys.meta_path[:] = [Finder if found is PathFinder else found for found in sys.meta_path]
