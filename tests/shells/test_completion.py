"""`extproc completion`, in real shells if they are installed."""

from __future__ import annotations

import argparse
import os
import pty
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from shlex import quote
from time import monotonic

import pytest

from extproc.cli import main, parsers
from extproc.commands.values import one_of
from extproc.shells.commands import Value, commands
from tests.extent import PATIENCE

SHELLS = ("bash", "zsh", "fish")

Complete = Callable[[str], list[str]]
"""Returns the completions of a command line that ends at the cursor."""

BASH = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_extproc
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


ZSH = """
autoload -Uz compinit; compinit -u -D
source {script}
finish() {{ print -r -- $BUFFER > {result}; BUFFER=exit; zle accept-line }}
zle -N finish; bindkey ^X finish
"""


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The script of each shell."""
    directory = tmp_path_factory.mktemp("scripts")
    written = {}
    for name in SHELLS:
        written[name] = directory / f"extproc.{name}"
        with pytest.MonkeyPatch.context() as patch, written[name].open("w") as file:
            patch.setattr("sys.stdout", file)
            assert main(["completion", name]) == 0
    return written


def run(*command: str, cwd: Path | None = None) -> list[str]:
    ran = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=60, env=os.environ, check=True
    )
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.fixture
def bash(scripts: Mapping[str, Path], tmp_path: Path) -> Complete:
    program = shell("bash")

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        text = BASH.format(script=scripts["bash"], words=" ".join(map(quote, words)))
        return [one for one in run(program, "--norc", "-c", text, cwd=tmp_path) if one]

    return complete


@pytest.fixture
def fish(scripts: Mapping[str, Path], tmp_path: Path) -> Complete:
    program = shell("fish")

    def complete(line: str) -> list[str]:
        text = f"source {scripts['fish']}; complete -C {quote(line)}"
        found = run(program, "--no-config", "-c", text, cwd=tmp_path)
        return [one.split("\t")[0] for one in found]

    return complete


@pytest.mark.parametrize("name", SHELLS)
def test_script_has_no_syntax_errors(name: str, scripts: Mapping[str, Path]) -> None:
    assert run(shell(name), "-n", str(scripts[name])) == []


@pytest.mark.parametrize("name", ["bash", "fish"])
class TestCompletes:
    @pytest.fixture
    def complete(self, name: str, request: pytest.FixtureRequest) -> Complete:
        found: Complete = request.getfixturevalue(name)
        return found

    def test_commands(self, complete: Complete) -> None:
        assert set(complete("extproc ")) >= {"serve", "check", "completion", "demo", "simulate"}
        assert complete("extproc exp") == ["explain"]

    def test_flags_of_the_command(self, complete: Complete) -> None:
        assert complete("extproc serve --log-f") == ["--log-format"]
        assert "--listen" not in complete("extproc explain --")

    def test_flags_of_commands_of_the_laboratory(self, complete: Complete) -> None:
        assert complete("extproc demo --us") == ["--users"]
        assert complete("extproc load --ti") == ["--timeout"]

    def test_values_of_flags(self, complete: Complete) -> None:
        assert set(complete("extproc serve --log-level ")) == {"debug", "error", "info", "warning"}
        assert complete("extproc serve --log-level w") == ["warning"]
        assert set(complete("extproc completion ")) == {"bash", "zsh", "fish"}

    def test_files(self, complete: Complete, tmp_path: Path) -> None:
        (tmp_path / "my models.yaml").touch()
        for line in ("extproc check m", "extproc serve --models m"):
            assert [one.replace("\\", "") for one in complete(line)] == ["my models.yaml"]

    def test_nothing_for_a_value_that_can_be_anything(self, complete: Complete) -> None:
        assert complete("extproc serve --listen ") == []


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("extproc exp", "extproc explain "),
        ("extproc serve --log-f", "extproc serve --log-format "),
        ("extproc serve --log-level w", "extproc serve --log-level warning "),
        ("extproc demo --us", "extproc demo --users "),
        ("extproc completion f", "extproc completion fish "),
        ("extproc check my", "extproc check my\\ models.yaml "),
    ],
)
def test_zsh_completes(
    scripts: Mapping[str, Path], tmp_path: Path, typed: str, completed: str
) -> None:
    (tmp_path / "my models.yaml").touch()
    result = tmp_path / "completed"
    setup = tmp_path / ".zshrc"
    setup.write_text(ZSH.format(script=scripts["zsh"], result=result))
    in_terminal([shell("zsh"), "-i"], f"{typed}\t\x18", tmp_path)
    assert result.read_text() == f"{completed}\n"


def in_terminal(command: list[str], keys: str, directory: Path) -> None:
    """Run a program in a terminal of its own, and press keys until it ends."""
    master, slave = pty.openpty()
    environment = {**os.environ, "ZDOTDIR": str(directory), "TERM": "vt100"}
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=directory,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    os.write(master, keys.encode())
    try:
        deadline = monotonic() + PATIENCE
        while process.poll() is None and monotonic() < deadline:
            if select([master], [], [], 0.05)[0]:
                with suppress(OSError):  # the program has ended
                    os.read(master, 4096)
        assert process.poll() is not None
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_zsh_loads_the_script(scripts: Mapping[str, Path]) -> None:
    begin = "autoload -Uz compinit; compinit -u -D"
    text = f"{begin}; source {scripts['zsh']}; print $_comps[extproc]"
    assert run(shell("zsh"), "-f", "-c", text) == ["_extproc"]


def test_bash_completes_after_an_equals_sign(bash: Complete) -> None:
    assert bash("extproc serve --log-level = de") == ["debug"]


def test_every_command_is_known() -> None:
    assert list(parsers()) == [
        *("serve", "check", "explain", "envoy-config", "reach", "schema", "completion"),
        *("demo", "load", "run", "simulate"),
    ]


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "'tcsh'" in capsys.readouterr().err


class TestCommands:
    @pytest.fixture
    def parser(self) -> argparse.ArgumentParser:
        return argparse.ArgumentParser(add_help=False, description="Does it. And more.")

    def test_have_the_first_sentence_of_their_description(
        self, parser: argparse.ArgumentParser
    ) -> None:
        (command,) = commands({"do": parser})
        assert (command.name, command.meaning) == ("do", "Does it")

    def test_have_flags_with_their_values(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("-q", "--quiet", action="store_true", help="say less (default: all)")
        parser.add_argument("--level", type=one_of("low", "high"), metavar="L", help="level")
        parser.add_argument("--secret", help=argparse.SUPPRESS)
        parser.add_argument("file", type=Path, metavar="FILE")
        (command,) = commands({"do": parser})
        quiet, level = command.flags
        assert (quiet.names, quiet.meaning, quiet.value) == (("-q", "--quiet"), "say less", None)
        assert level.value == Value("L", ("low", "high"))
        assert command.arguments == [Value("FILE", is_file=True)]
