"""Runs `extproc load` as `python -m extproc.lab.load`."""

from __future__ import annotations

import sys

from extproc.lab.load.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
