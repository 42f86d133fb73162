"""The flag of `extproc serve` for traces."""

from __future__ import annotations

import pytest

from extproc.adapters.tracing.endpoint import OtlpEndpoint
from extproc.cli import main
from extproc.settings import Settings

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


def test_nothing_is_traced_by_default(settings: list[Settings]) -> None:
    assert main(SERVE) == 0
    assert settings[0].otlp is None


def test_flag_names_the_receiver(settings: list[Settings]) -> None:
    assert main([*SERVE, "--otlp", "http://collector:4317"]) == 0
    assert settings[0].otlp == OtlpEndpoint("grpc", "http://collector:4317")


def test_environment_variable_is_read(
    settings: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXTPROC_OTLP", "https://collector")
    assert main(SERVE) == 0
    assert settings[0].otlp == OtlpEndpoint("http", "https://collector/v1/traces")


def test_other_urls_are_refused_in_one_line(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*SERVE, "--otlp", "collector:4317"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "argument --otlp: 'collector:4317' is not http://HOST[:PORT]" in line
