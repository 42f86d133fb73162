"""The results of trials: a JSON file that the page is made from."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import fmean

from extproc.lab.tables.trials import CEILING, Figures, Task, Trial, key


class Book:
    """Figures by the keys of their tasks."""

    def __init__(self, figures: Mapping[str, Figures] | None = None) -> None:
        self._figures = dict(figures or {})

    @classmethod
    def read(cls, path: Path) -> Book:
        """Read a file; without a file, return an empty book."""
        return cls(json.loads(path.read_text()) if path.exists() else {})

    def write(self, path: Path) -> None:
        """Write the figures sorted by key, one task a line."""
        figures = sorted(self._figures.items())
        lines = (f"{json.dumps(name)}: {json.dumps(those)}" for name, those in figures)
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    def note(self, task: Task, figures: Figures) -> None:
        """Replace the figures of a task."""
        self._figures[key(task)] = figures

    def keep(self, tasks: Collection[Task]) -> None:
        """Remove the figures of all other tasks."""
        wanted = {key(task) for task in tasks}
        self._figures = {name: those for name, those in self._figures.items() if name in wanted}

    def of(self, task: Task) -> Figures | None:
        """Return the figures of a task, if known."""
        return self._figures.get(key(task))

    def ceiling(self, scene: str) -> float | None:
        """Return the ceiling of a scene's hit rate, if known."""
        return (self.of(scene) or {}).get(CEILING)

    def mean(self, trial: Trial) -> Figures | None:
        """Return the mean over all seeds; None if a seed is missing."""
        found = [self.of(one) for one in trial.repeated]
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return None
        names = [name for name in known[0] if all(name in one for one in known)]
        return {name: fmean(one[name] for one in known) for name in names}
