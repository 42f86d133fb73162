"""Processes that simulate, and how they end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

INTERRUPTED = """
import time
from extproc.lab.simulation.workers import workers

if __name__ == "__main__":
    with workers(2) as pool:
        for _ in range(40):
            pool.submit(bytes, 30_000_000)
        time.sleep(1.0)
        raise KeyboardInterrupt
"""
"""While its processes send results so large that one of them is always under way."""


def test_those_that_break_off_in_the_middle_of_a_result_are_not_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=30)
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode != 0
