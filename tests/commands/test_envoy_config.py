"""The command `extproc envoy-config`."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml

from extproc.cli import main
from extproc.envoy import envoy_configuration
from tests.envoy.texts import APP, configuration, listener, merged
from tests.manifests.test_envoy import assert_valid

MODELS = "models:\n- name: llama\n  endpoints: [10.0.0.1:8000, 10.0.0.2:8000]\n"

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def yours(tmp_path: Path) -> Path:
    path = tmp_path / "your.yaml"
    path.write_text(configuration())
    return path


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(MODELS)
    return path


def run(*arguments: object) -> int:
    return main(["envoy-config", *map(str, arguments)])


def refused(capsys: Capture, *arguments: object) -> str:
    """Run a command that must fail; return its one line."""
    code: object = 0
    try:
        code = run(*arguments)
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    (line,) = captured.err.splitlines()
    return line


class TestPrint:
    def test_prints_the_shipped_file_without_addresses(self, capsys: Capture) -> None:
        assert run() == 0
        assert capsys.readouterr().out == envoy_configuration().read_text()

    def test_prints_the_given_addresses(
        self, capsys: Capture, models: Path, tmp_path: Path
    ) -> None:
        assert run("--models", models, "--sidecar", "unix:/run/e.sock", "--listen", "[::1]:81") == 0
        text = capsys.readouterr().out
        assert "# 4. The target header selects the route." in text
        found = yaml.safe_load(text)
        assert_valid(found, tmp_path)
        address = found["static_resources"]["listeners"][0]["address"]["socket_address"]
        assert address == {"address": "::1", "port_value": 81}
        clusters = {one["name"]: one for one in found["static_resources"]["clusters"]}
        assert clusters["fallback"]["type"] == "STATIC"
        assert "10.0.0.2" in str(clusters["fallback"]["load_assignment"])
        assert "{'path': '/run/e.sock'}" in str(clusters["extproc"]["load_assignment"])

    def test_lets_envoy_resolve_host_names(self, capsys: Capture, tmp_path: Path) -> None:
        assert run("--endpoint", "vllm.inference:8000", "--sidecar", "extproc:9002") == 0
        found = yaml.safe_load(capsys.readouterr().out)
        assert_valid(found, tmp_path)
        clusters = {one["name"]: one for one in found["static_resources"]["clusters"]}
        assert clusters["fallback"]["type"] == clusters["extproc"]["type"] == "STRICT_DNS"


class TestInto:
    def test_writes_the_pieces_and_shows_the_difference(
        self, capsys: Capture, yours: Path, models: Path
    ) -> None:
        before = yours.read_text()
        assert run("--into", yours, "--models", models) == 0
        captured = capsys.readouterr()
        assert yours.read_text() == merged(before)
        added = [line for line in captured.out.splitlines()[2:] if line.startswith("+")]
        assert len(added) == len(yours.read_text().splitlines()) - len(before.splitlines())
        assert f"Next: envoy --mode validate -c {yours}" in captured.err

    def test_changes_nothing_in_a_second_run(
        self, capsys: Capture, yours: Path, models: Path
    ) -> None:
        run("--into", yours, "--models", models)
        capsys.readouterr()
        before, written_at = yours.read_bytes(), yours.stat().st_mtime_ns
        assert run("--into", yours, "--models", models) == 0
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == f"{yours}: not changed, because it has all the pieces\n"
        assert (yours.read_bytes(), yours.stat().st_mtime_ns) == (before, written_at)

    def test_writes_nothing_in_a_dry_run(self, capsys: Capture, yours: Path) -> None:
        before = yours.read_text()
        assert run("--into", yours, "--endpoint", "10.0.0.1:8000", "--dry-run") == 0
        assert "+  - name: chosen" in capsys.readouterr().out
        assert yours.read_text() == before

    def test_keeps_the_files_mode_and_a_link_to_it(
        self, yours: Path, models: Path, tmp_path: Path
    ) -> None:
        yours.chmod(0o640)
        link = tmp_path / "link.yaml"
        link.symlink_to(yours)
        assert run("--into", link, "--models", models) == 0
        assert link.is_symlink()
        assert stat.S_IMODE(yours.stat().st_mode) == 0o640
        assert "ext_proc" in yours.read_text()
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "link.yaml",
            "models.yaml",
            "your.yaml",
        ]

    def test_keeps_the_file_after_a_failed_write(
        self, capsys: Capture, yours: Path, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = yours.read_text()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device", str(yours))

        monkeypatch.setattr("os.replace", full)
        assert run("--into", yours, "--models", models) == 2
        assert capsys.readouterr().err.endswith(f"{yours}: No space left on device\n")
        assert yours.read_text() == before
        assert not list(yours.parent.glob(".your.yaml*"))

    def test_notes_that_several_models_share_one_fallback(
        self, capsys: Capture, yours: Path, models: Path
    ) -> None:
        models.write_text(MODELS + "- name: other\n  endpoints: [10.0.0.3:8000]\n")
        assert run("--into", yours, "--models", models) == 0
        assert "2 models share one fallback" in capsys.readouterr().err
        assert "10.0.0.3" in yours.read_text()


class TestUserError:
    def test_address_of_a_server_is_missing(self, capsys: Capture, yours: Path) -> None:
        before = yours.read_text()
        assert "give --endpoint HOST:PORT, or --models FILE" in refused(capsys, "--into", yours)
        assert yours.read_text() == before

    def test_models_document_has_no_static_endpoints(
        self, capsys: Capture, yours: Path, models: Path
    ) -> None:
        models.write_text("models: [{name: a, service: {namespace: n, name: s, port: http}}]\n")
        line = refused(capsys, "--into", yours, "--models", models)
        assert line.startswith(f"{models}: no static endpoints: give the servers with")

    def test_models_document_is_invalid(self, capsys: Capture, yours: Path, models: Path) -> None:
        models.write_text("models: 5\n")
        assert str(models) in refused(capsys, "--into", yours, "--models", models)

    def test_file_is_missing(self, capsys: Capture, tmp_path: Path) -> None:
        line = refused(capsys, "--into", tmp_path / "no.yaml", "--endpoint", "a:1")
        assert line == f"{tmp_path / 'no.yaml'}: No such file or directory"

    def test_file_is_not_yaml(self, capsys: Capture, yours: Path) -> None:
        yours.write_text("a: [1\nb: 2\n")
        assert refused(capsys, "--check", yours).startswith(f"{yours}: line 2, column 2: ")
        yours.write_bytes(b"a: \xff\n")
        assert refused(capsys, "--check", yours) == f"{yours}: byte 3 is not UTF-8"

    def test_listener_is_ambiguous(self, capsys: Capture, yours: Path) -> None:
        yours.write_text(configuration([listener(name="a"), listener(APP, name="b")]))
        line = refused(capsys, "--into", yours, "--endpoint", "a:1")
        assert "more than one virtual host is possible: a/site, b/site" in line

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--dry-run"], "--dry-run needs --into FILE"),
            (["--prefix", "/a"], "--prefix needs --into FILE"),
            (["--into", "a", "--listen", "a:1"], "which changes no listener's address"),
            (
                ["--check", "a", "--endpoint", "a:1"],
                "--check cannot be used with --endpoint or --models",
            ),
            (["--check", "a", "--into", "b"], "not allowed with argument"),
            (["--endpoint", "10.0.0.1"], "'10.0.0.1' is neither HOST:PORT"),
            (["--endpoint", "unix:/a"], "'unix:/a' is not HOST:PORT"),
            (["--into", "a", "--prefix", "team"], "'team' is not a path such as /team"),
        ],
    )
    def test_flags_cannot_be_combined(
        self, capsys: Capture, arguments: list[str], message: str
    ) -> None:
        assert message in refused(capsys, *arguments)


class TestCheck:
    def test_prints_nothing_for_a_good_file(self, capsys: Capture) -> None:
        assert run("--check", envoy_configuration()) == 0
        assert capsys.readouterr().out == ""

    def test_hints_and_warnings_do_not_change_the_exit_code(self, capsys: Capture) -> None:
        path = envoy_configuration("fail-closed.yaml")
        assert run("--check", path) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"{path}: line ")
        assert ": hint: listener llm, envoy.filters.http.ext_proc: failure_mode_allow" in line

    def test_exit_code_is_2_for_an_error(self, capsys: Capture, yours: Path) -> None:
        assert run("--check", yours) == 2
        (line,) = capsys.readouterr().out.splitlines()
        assert line == (
            f"{yours}: line 2: error: listeners: no static listener has an ext_proc filter: "
            "Envoy never calls the sidecar, so no request gets a decision; fix: run `extproc "
            "envoy-config --into` on this file"
        )
