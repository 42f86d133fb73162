"""Processes for simulations, and their ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.extent import PATIENCE

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
"""Interrupts the processes while they send large results, so that one is always in transit."""


def test_workers_that_die_while_sending_are_not_awaited(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=PATIENCE
    )
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode != 0
