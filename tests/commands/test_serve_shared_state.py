"""The flags of `extproc serve` for the state that sidecars share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from extproc.adapters.shared_state.server import SharedStateServer
from extproc.cli import main
from extproc.settings import Settings
from tests.commands.running import refused
from tests.commands.test_serve import serve

Capture = pytest.CaptureFixture[str]
SERVE = ["serve", "--models", "m.yaml"]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that `serve` gets. It does not really serve."""
    given: list[Settings] = []

    async def take(settings: Settings) -> None:
        given.append(settings)

    monkeypatch.setattr("extproc.commands.serve.serve", take)
    monkeypatch.setattr("extproc.commands.serve.logs.configure", lambda *_: None)
    return given


def test_nothing_is_shared_by_default(settings: list[Settings]) -> None:
    assert main(SERVE) == 0
    assert settings[0].shared_state is None


def test_flags_name_the_server_the_key_and_the_password_file(settings: list[Settings]) -> None:
    flags = ["--shared-state", "redis://valkey:6379/2", "--shared-state-key", "team-a"]
    assert main([*SERVE, *flags, "--shared-state-password-file", "/run/secret"]) == 0
    assert settings[0].shared_state == SharedStateServer(
        "redis://valkey:6379/2", "team-a", Path("/run/secret")
    )


def test_the_key_has_a_default(settings: list[Settings]) -> None:
    assert main([*SERVE, "--shared-state", "redis://valkey"]) == 0
    assert settings[0].shared_state == SharedStateServer("redis://valkey", "extproc", None)


def test_environment_variables_are_read(
    settings: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXTPROC_SHARED_STATE", "rediss://user:secret@valkey")
    monkeypatch.setenv("EXTPROC_SHARED_STATE_KEY", "team-b")
    monkeypatch.setenv("EXTPROC_SHARED_STATE_PASSWORD_FILE", "password")
    assert main(SERVE) == 0
    assert settings[0].shared_state == SharedStateServer(
        "rediss://user:secret@valkey", "team-b", Path("password")
    )


@pytest.mark.parametrize(
    "url",
    [
        "redis://valkey",
        "redis://valkey:6379",
        "redis://valkey/",
        "redis://valkey/15",
        "redis://user:p%40ss@valkey:6379/0",
        "redis://[fd00::1]:6379/0",
        "rediss://valkey:6379/0?ssl_ca_certs=/ca.pem",
        "unix:///run/valkey.sock",
        "unix:///run/valkey.sock?db=2",
    ],
)
def test_urls_of_servers_are_accepted(url: str, settings: list[Settings]) -> None:
    assert main([*SERVE, "--shared-state", url]) == 0
    assert settings[0].shared_state is not None
    assert settings[0].shared_state.url == url


@pytest.mark.parametrize("way", ["flag", "variable"])
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("valkey:6379", "must be redis://HOST"),
        ("http://u:secret@valkey", "must be redis://HOST"),
        ("redis://", "must be redis://HOST"),
        ("redis://:secret@:6379", "must be redis://HOST"),
        ("redis://u:secret@valkey:many", "must be redis://HOST"),
        ("redis://u:secret@valkey:0", "must be redis://HOST"),
        ("redis://u:secret@valkey:99999", "must be redis://HOST"),
        ("redis://[fd00::1", "must be redis://HOST"),
        ("unix://", "must be redis://HOST"),
        ("redis://u:secret@valkey/first", "the database 'first' is not a number"),
        ("redis://u:secret@valkey/1/2", "the database '1/2' is not a number"),
    ],
)
def test_other_urls_are_refused_in_one_line_without_the_password(
    url: str, why: str, way: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--shared-state", url] if way == "flag" else []
    if way == "variable":
        monkeypatch.setenv("EXTPROC_SHARED_STATE", url)
    line = refused(capsys, *SERVE, *flags)
    assert why in line
    assert "secret" not in line


def test_the_password_file_needs_a_server(settings: list[Settings], capsys: Capture) -> None:
    assert main([*SERVE, "--shared-state-password-file", "x"]) == 2
    assert capsys.readouterr().err == (
        "extproc serve: --shared-state-password-file needs --shared-state\n"
    )
    assert settings == []


def test_the_server_needs_the_package(
    settings: list[Settings], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extproc.commands.serve.find_spec", lambda _: None)
    assert main([*SERVE, "--shared-state", "redis://valkey"]) == 2
    assert capsys.readouterr().err == (
        "extproc serve: --shared-state needs redis: pip install 'extproc-router[shared]'\n"
    )
    assert settings == []


def test_a_bad_option_of_the_url_ends_the_start_in_one_line(models: Path) -> None:
    run = serve(models, "--shared-state", "rediss://u:secret@valkey/0?ssl_cert_reqs=maybe")
    assert (run.returncode, run.stdout) == (2, "")
    (line,) = run.stderr.splitlines()
    assert line.startswith("--shared-state rediss://valkey/0: ")
    assert "secret" not in line


def test_the_package_is_imported_only_if_it_is_used() -> None:
    program = (
        "import json, sys, extproc.app, extproc.commands.serve; "
        "print(json.dumps([m for m in sys.modules if m.split('.')[0] in ('redis', 'hiredis') "
        "or m.startswith('extproc.adapters.shared_state.')]))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(run.stdout) == ["extproc.adapters.shared_state.server"]
