"""The command `extproc serve`."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from extproc.adapters.dns.lookup import NameServer
from extproc.app import StartError
from extproc.cli import main
from extproc.edge.tls import KeyPair
from extproc.settings import ConfigMapName, Settings
from tests.commands.documents import BY_SERVICE, GOOD
from tests.commands.running import refused

Capture = pytest.CaptureFixture[str]


class TestServe:
    @pytest.fixture
    def settings(self, monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
        """The settings that `serve` gets. It does not really serve."""
        told: list[Settings] = []

        async def take(settings: Settings) -> None:
            told.append(settings)

        monkeypatch.setattr("extproc.commands.serve.serve", take)
        monkeypatch.setattr("extproc.commands.serve.logs.configure", lambda *_: None)
        return told

    def test_has_defaults(self, settings: list[Settings]) -> None:
        assert main(["serve", "--models", "m.yaml"]) == 0
        assert settings == [Settings("127.0.0.1:9002", "127.0.0.1:9090", Path("m.yaml"), 25)]

    def test_accepts_flags(self, settings: list[Settings]) -> None:
        flags = ["--listen", "unix:/run/x.sock", "--admin", "[::]:9091", "--grace", "1.5"]
        assert main(["serve", "--models", "m.yaml", *flags]) == 0
        assert settings == [Settings("unix:/run/x.sock", "[::]:9091", Path("m.yaml"), 1.5)]

    def test_prefers_flags_to_environment_variables(
        self, settings: list[Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {
            "LISTEN": "0.0.0.0:1",
            "ADMIN": "0.0.0.0:2",
            "MODELS": "env.yaml",
            "GRACE": "3",
            "LOG_LEVEL": "DEBUG",
            "LOG_FORMAT": "json",
        }.items():
            monkeypatch.setenv(f"EXTPROC_{name}", value)
        assert main(["serve", "--admin", "0.0.0.0:9"]) == 0
        assert settings == [Settings("0.0.0.0:1", "0.0.0.0:9", Path("env.yaml"), 3)]

    @pytest.mark.parametrize("way", ["flag", "variable", "neither"])
    def test_logs_prompts_only_with_the_flag(
        self, way: str, settings: list[Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if way == "variable":
            monkeypatch.setenv("EXTPROC_LOG_PROMPTS", "true")
        flags = ["--log-prompts"] if way == "flag" else []
        assert main(["serve", "--models", "m.yaml", *flags]) == 0
        assert settings[0].log_prompts is (way != "neither")

    @pytest.mark.parametrize("way", ["flag", "variable", "neither"])
    def test_has_a_status_page_without_the_flag(
        self, way: str, settings: list[Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if way == "variable":
            monkeypatch.setenv("EXTPROC_NO_STATUS_PAGE", "1")
        flags = ["--no-status-page"] if way == "flag" else []
        assert main(["serve", "--models", "m.yaml", *flags]) == 0
        assert settings[0].status_page is (way == "neither")

    @pytest.mark.parametrize("way", ["flag", "variable", "neither"])
    def test_passes_unknown_paths_only_with_the_flag(
        self, way: str, settings: list[Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if way == "variable":
            monkeypatch.setenv("EXTPROC_UNKNOWN_PATHS", "pass")
        flags = ["--unknown-paths", "pass"] if way == "flag" else []
        assert main(["serve", "--models", "m.yaml", *flags]) == 0
        assert settings[0].pass_unknown is (way != "neither")

    def test_reads_the_models_from_a_configmap(self, settings: list[Settings]) -> None:
        flags = ["--kubeconfig", "config.yaml", "--allow-loopback"]
        assert main(["serve", "--models-configmap", "inference/models", *flags]) == 0
        (told,) = settings
        assert told.models == ConfigMapName("inference", "models")
        assert told.kubeconfig == Path("config.yaml")
        assert told.allow_loopback is True

    def test_reads_kubernetes_flags_from_the_environment(
        self, settings: list[Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EXTPROC_MODELS_CONFIGMAP", "inference/models")
        monkeypatch.setenv("EXTPROC_KUBECONFIG", "config.yaml")
        monkeypatch.setenv("EXTPROC_ALLOW_LOOPBACK", "true")
        assert main(["serve"]) == 0
        assert settings == [
            Settings(
                "127.0.0.1:9002",
                "127.0.0.1:9090",
                ConfigMapName("inference", "models"),
                25,
                Path("config.yaml"),
                allow_loopback=True,
            )
        ]

    @pytest.mark.parametrize(
        ("given", "server"),
        [
            ("10.0.0.2", NameServer("10.0.0.2", 53)),
            ("10.0.0.2:8600", NameServer("10.0.0.2", 8600)),
            ("fd00::2", NameServer("fd00::2", 53)),
            ("[fd00::2]:8600", NameServer("fd00::2", 8600)),
        ],
    )
    def test_accepts_a_name_server(
        self,
        given: str,
        server: NameServer,
        settings: list[Settings],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        assert main(["serve", "--models", "m.yaml", "--dns-server", given]) == 0
        monkeypatch.setenv("EXTPROC_DNS_SERVER", given)
        assert main(["serve", "--models", "m.yaml"]) == 0
        assert [told.dns_server for told in settings] == [server, server]

    @pytest.mark.parametrize("value", ["false", "0", "no", "off", ""])
    def test_environment_can_forbid_loopback(
        self, value: str, settings: list[Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EXTPROC_ALLOW_LOOPBACK", value)
        assert main(["serve", "--models", "m.yaml"]) == 0
        assert not settings[0].allow_loopback

    @pytest.mark.parametrize(
        "given", [[], ["--models", "m.yaml", "--models-configmap", "inference/models"]]
    )
    def test_needs_exactly_one_source_of_models(
        self, given: list[str], settings: list[Settings], capsys: Capture
    ) -> None:
        assert main(["serve", *given]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        assert line.startswith("extproc serve: ")
        assert "--models FILE" in line
        assert "--models-configmap NAMESPACE/NAME" in line
        assert settings == []

    def test_prints_the_start_error_after_the_log(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        # To see why a pod ended, people read the last line of its log.
        async def fail(_: Settings) -> None:
            raise StartError("no luck")

        monkeypatch.setattr("extproc.commands.serve.serve", fail)
        monkeypatch.setattr("extproc.commands.serve.logs.configure", lambda *_: None)
        monkeypatch.setattr(
            "extproc.commands.serve.logs.flush", lambda: print("logged", file=sys.stderr)
        )
        assert main(["serve", "--models", "m.yaml"]) == 2
        assert capsys.readouterr().err == "logged\nno luck\n"

    @pytest.mark.parametrize("alone", ["--tls-cert", "--tls-key"])
    def test_needs_certificate_and_key_together(
        self, alone: str, settings: list[Settings], capsys: Capture
    ) -> None:
        assert main(["serve", "--models", "m.yaml", alone, "x.pem"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == "extproc serve: give --tls-cert and --tls-key together"
        assert settings == []

    def test_accepts_a_certificate_and_its_key(self, settings: list[Settings]) -> None:
        pair = ["--tls-cert", "tls.crt", "--tls-key", "tls.key"]
        assert main(["serve", "--models", "m.yaml", *pair]) == 0
        assert settings[0].tls == KeyPair(Path("tls.crt"), Path("tls.key"))
        assert settings[0].transport == "fast"

    def test_accepts_a_ca_for_client_certificates(self, settings: list[Settings]) -> None:
        files = ["--tls-cert", "a", "--tls-key", "b", "--tls-client-ca", "c"]
        assert main(["serve", "--models", "m.yaml", *files]) == 0
        assert settings[0].tls == KeyPair(Path("a"), Path("b"), Path("c"))

    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            (["--tls-client-ca", "c"], "--tls-client-ca needs --tls-cert and --tls-key"),
            (["--transport", "slow"], "'slow' is not one of fast, grpcio"),
        ],
    )
    def test_refuses_bad_transport_flags(
        self, wrong: list[str], told: str, settings: list[Settings], capsys: Capture
    ) -> None:
        with suppress(SystemExit):
            assert main(["serve", "--models", "m.yaml", *wrong]) == 2
        assert told in capsys.readouterr().err
        assert settings == []

    def test_uses_the_fast_transport_by_default(self, settings: list[Settings]) -> None:
        for said, transport in ([], "fast"), (["--transport", "grpcio"], "grpcio"):
            assert main(["serve", "--models", "m.yaml", *said]) == 0
            assert settings.pop().transport == transport

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("LISTEN", "nowhere"),
            ("GRACE", "soon"),
            ("LOG_LEVEL", "loud"),
            ("LOG_FORMAT", "xml"),
            ("MODELS_CONFIGMAP", "models"),
            ("NO_STATUS_PAGE", "maybe"),
        ],
    )
    def test_refuses_a_bad_environment_variable_like_a_flag(
        self, name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        monkeypatch.setenv(f"EXTPROC_{name}", value)
        assert repr(value) in refused(capsys, "serve", "--models", "m.yaml")

    @pytest.mark.parametrize(
        ("value", "page"), [("", True), ("0", True), ("No", True), ("1", False), ("TRUE", False)]
    )
    def test_variable_of_a_switch_is_a_boolean(
        self, value: str, page: bool, settings: list[Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EXTPROC_NO_STATUS_PAGE", value)
        assert main(["serve", "--models", "m.yaml"]) == 0
        assert settings[0].status_page is page

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (GOOD.replace("name", "nam"), "models[0].name: is required"),
            ("models: [\n", "line 2, column 1: did not find expected node content"),
            (BY_SERVICE, "service n/s: no credentials for Kubernetes in /nonexistent/kubeconfig: "),
            (None, "No such file or directory"),
        ],
    )
    def test_does_not_start_with_a_bad_first_document(
        self, content: str | None, says: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "models.yaml"
        if content is not None:
            path.write_text(content)
        run = serve(path)
        assert (run.returncode, run.stdout) == (2, "")
        (line,) = run.stderr.splitlines()
        assert line.startswith(f"{path}: ")
        assert says in line

    @pytest.mark.parametrize("flag", ["--listen", "--admin"])
    def test_does_not_start_on_a_port_in_use(self, flag: str, models: Path) -> None:
        with taken_port() as port:
            run = serve(models, flag, f"127.0.0.1:{port}")
        assert run.returncode == 2
        *logged, line = run.stderr.splitlines()
        assert line == f"{flag}: cannot listen on 127.0.0.1:{port}: Address already in use"
        assert all(" INFO " in line for line in logged)


def serve(models: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the real command, which must end by itself."""
    ports = [f"--{name}=unix:{models.parent}/{name}.sock" for name in ("listen", "admin")]
    command = [sys.executable, "-m", "extproc", "serve", "--models", str(models), *ports, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]
