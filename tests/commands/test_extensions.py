"""Commands that entry points register."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from extproc.cli import main

Capture = pytest.CaptureFixture[str]


class TestExtensionCommands:
    """Commands outside the data path, which entry points register."""

    @pytest.fixture
    def fly(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The file for the module of a command `fly`."""
        self.install(monkeypatch, "flying:main [wings]")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "flying", raising=False)
        return tmp_path / "flying.py"

    def install(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        command = EntryPoint("fly", value, "extproc.commands")
        monkeypatch.setattr(
            "extproc.commands.extensions.entry_points", lambda group: EntryPoints([command])
        )

    def test_are_listed_with_the_others(self, capsys: Capture) -> None:
        with pytest.raises(SystemExit):
            main(["--help"])
        listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
        assert {"serve", "check", "explain", "demo", "run", "load", "simulate"} <= set(listed)

    def test_are_listed_with_their_purpose_and_without_importing_them(self) -> None:
        program = (
            "import sys; from extproc.cli import full_parser; print(full_parser().format_help()); "
            "sys.exit('extproc.lab' in sys.modules)"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert ran.returncode == 0
        listed = " ".join(ran.stdout.split())
        assert "simulate simulate a fleet of vLLM engines (extra: lab)" in listed

    @pytest.mark.parametrize("name", ["demo", "run", "load", "simulate"])
    def test_have_their_own_help(self, name: str, capsys: Capture) -> None:
        with pytest.raises(SystemExit) as exit_:
            main([name, "--help"])
        assert exit_.value.code == 0
        assert f"usage: extproc {name}" in capsys.readouterr().out

    def test_get_their_arguments_and_return_the_exit_code(self, fly: Path, capsys: Capture) -> None:
        fly.write_text("def main(given):\n    print(given)\n    return 7\n")
        assert main(["fly", "--high", "up"]) == 7
        assert capsys.readouterr().out == "['--high', 'up']\n"

    def test_are_not_loaded_for_another_command(self, fly: Path, models: Path) -> None:
        fly.write_text("raise AssertionError\n")
        assert main(["check", str(models)]) == 0

    def test_report_which_extra_to_install(self, fly: Path, capsys: Capture) -> None:
        fly.write_text("import feathers\n")
        assert main(["fly"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == (
            "extproc fly: feathers is not installed: this command needs extproc-router[wings] "
            "(in a checkout: pip install '.[wings]')\n"
        )

    def test_are_listed_even_without_their_libraries(self, fly: Path, capsys: Capture) -> None:
        fly.write_text("import feathers\n")
        with pytest.raises(SystemExit) as exit_:
            main(["--help"])
        assert exit_.value.code == 0
        assert "fly" in capsys.readouterr().out

    def test_that_two_distributions_register_are_listed_once(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        both = [EntryPoint("fly", f"flying:{name}", "extproc.commands") for name in ("a", "b")]
        monkeypatch.setattr(
            "extproc.commands.extensions.entry_points", lambda group: EntryPoints(both)
        )
        with pytest.raises(SystemExit) as exit_:
            main(["--help"])
        assert exit_.value.code == 0
        assert capsys.readouterr().out.count("extproc fly --help") == 1

    @pytest.mark.parametrize("command", [["--help"], ["fly"], ["check", "none.yaml"]])
    def test_of_other_packages_need_no_extra(
        self, command: list[str], fly: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        self.install(monkeypatch, "flying:main")
        fly.write_text("import feathers\n")
        if command == ["--help"]:
            with pytest.raises(SystemExit):
                main(command)
            assert "fly" in capsys.readouterr().out
        else:
            assert main(command) == 2
            assert len(capsys.readouterr().err.splitlines()) == 1

    def test_are_not_imported_by_the_data_path(self, models: Path, body: Path) -> None:
        commands = [
            *(["--help"], ["serve", "--help"], ["check", "--help"], ["explain", "--help"]),
            *(["serve", "--models", "/nonexistent"], ["check", str(models)]),
            ["explain", "--models", str(models), "--body", str(body)],
        ]
        run = subprocess.run(
            [sys.executable, "-c", IMPORTED, json.dumps(commands)], capture_output=True, text=True
        )
        *_, imported = run.stdout.splitlines()
        assert json.loads(imported) == []


IMPORTED = """
import json, sys
from extproc.cli import main
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit:
        pass
others = ("extproc.lab", "numpy", "scipy", "matplotlib", "PIL", "rich")
print(json.dumps([name for name in sys.modules if name.startswith(others)]))
"""
