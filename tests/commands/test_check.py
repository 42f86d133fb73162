"""The command `extproc check`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from extproc.cli import main
from extproc.core.schema import StrategyName
from tests.commands.documents import BY_POOL, BY_SERVICE, GOOD

Capture = pytest.CaptureFixture[str]


class TestCheck:
    def test_prints_nothing_for_a_good_document(self, models: Path, capsys: Capture) -> None:
        assert main(["check", str(models)]) == 0
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", "")

    @pytest.mark.parametrize("document", [BY_SERVICE, BY_POOL])
    def test_accepts_kubernetes_sources_without_a_cluster(
        self, document: str, models: Path
    ) -> None:
        models.write_text(document)
        assert main(["check", str(models)]) == 0

    def test_prints_a_line_for_every_problem(self, models: Path, capsys: Capture) -> None:
        models.write_text(
            GOOD + "- {name: qwen, endpoints: [x], loadBalancing: {strategy: Best}}\n"
        )
        assert main(["check", str(models)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines() == [
            f"{models}: models[1].endpoints[0]: 'x' has no port; give IP:PORT or HOST:PORT",
            f"{models}: models[1].loadBalancing.strategy: 'Best' is not one of "
            + ", ".join(get_args(StrategyName)),
        ]

    def test_reports_a_missing_file(self, tmp_path: Path, capsys: Capture) -> None:
        assert main(["check", str(tmp_path / "none.yaml")]) == 2
        assert main(["check", str(tmp_path)]) == 2
        assert capsys.readouterr().err.splitlines() == [
            f"{tmp_path}/none.yaml: No such file or directory",
            f"{tmp_path}: Is a directory",
        ]
