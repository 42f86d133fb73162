from __future__ import annotations

import io
import json
import os
import socket
import socketserver
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from threading import Thread
from typing import get_args

import dns.message
import dns.rcode
import pytest

from extproc import __version__
from extproc.adapters.dns.lookup import NameServer
from extproc.app import ConfigMapName, Settings, StartError
from extproc.cli import main
from extproc.core.schema import StrategyName
from extproc.edge.tls import KeyPair

GOOD = "models:\n- name: llama\n  endpoints: [10.0.0.1:8000, 10.0.0.2:8000]\n"
TWO = GOOD + "- {name: qwen, endpoints: [10.0.1.1:8000]}\n"
BY_SERVICE = "models: [{name: a, service: {namespace: n, name: s, port: http}}]\n"
BY_POOL = "models: [{name: a, inferencePool: {namespace: n, name: p}}]\n"
BODY = b'{"model": "llama", "messages": [{"role": "user", "content": "hello"}]}'

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("EXTPROC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KUBECONFIG", "/nonexistent/kubeconfig")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def body(tmp_path: Path) -> Path:
    path = tmp_path / "body.json"
    path.write_bytes(BODY)
    return path


def refused(capsys: Capture, *arguments: object) -> str:
    """Run a command that must refuse its arguments. Return its one line on stderr."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def imported_by(*command: str) -> set[str]:
    """Return the modules that a process has imported when a command ends."""
    run = subprocess.run(
        [sys.executable, "-c", ALL_IMPORTED, json.dumps(command)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


ALL_IMPORTED = """
import json, sys
given = json.loads(sys.argv[1])
from extproc.cli import main
try:
    main(given)
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


class TestCommandLine:
    @pytest.mark.parametrize("command", [[], ["serve"], ["check"], ["explain"]])
    def test_has_help_for_every_command(self, command: list[str], capsys: Capture) -> None:
        with pytest.raises(SystemExit) as exit_:
            main([*command, "--help"])
        assert exit_.value.code == 0
        assert "usage: extproc" in capsys.readouterr().out

    def test_prints_its_version(self, capsys: Capture) -> None:
        with pytest.raises(SystemExit) as exit_:
            main(["--version"])
        assert exit_.value.code == 0
        assert capsys.readouterr().out == f"extproc {__version__}\n"

    def test_runs_as_a_module(self) -> None:
        run = subprocess.run(
            [sys.executable, "-m", "extproc", "--version"], capture_output=True, text=True
        )
        assert (run.returncode, run.stdout) == (0, f"extproc {__version__}\n")

    def test_prints_its_version_without_importing_the_application(self) -> None:
        slow = {
            *("extproc.app", "extproc.commands.serve", "extproc.core.conversation.state_machine"),
            *("aiohttp", "asyncio", "google.protobuf", "grpc", "importlib.metadata"),
            *("kubernetes", "pydantic", "yaml"),
        }
        assert slow & imported_by("--version") == set()

    def test_checks_a_document_without_importing_the_sidecar(self, models: Path) -> None:
        sidecar = {"extproc.app", "extproc.edge", "aiohttp", "grpc", "kubernetes"}
        assert sidecar & imported_by("check", str(models)) == set()

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ([], "required: COMMAND"),
            (["fly"], "invalid choice: 'fly'"),
            (["serve", "--models", "m", "--listen", "9002"], "'9002' is neither HOST:PORT nor"),
            (["serve", "--models", "m", "--listen", ":9002"], "':9002' is neither HOST:PORT nor"),
            (["serve", "--models", "m", "--listen", "unix:"], "'unix:' is neither HOST:PORT nor"),
            (["serve", "--models", "m", "--listen", "h:99999"], "'h:99999' is neither HOST:PORT"),
            (["serve", "--models", "m", "--admin", "h:x"], "'h:x' is neither HOST:PORT"),
            (["serve", "--models", "m", "--grace", "soon"], "'soon' is not a number of seconds"),
            (["serve", "--models", "m", "--grace", "-1"], "'-1' is not a number of seconds"),
            (["serve", "--models", "m", "--grace", "nan"], "'nan' is not a number of seconds"),
            (["serve", "--models", "m", "--grace", "inf"], "'inf' is not a number of seconds"),
            (["serve", "--models", "m", "--log-level", "loud"], "'loud' is not one of debug,"),
            (["serve", "--models", "m", "--unknown-paths", "no"], "is not one of refuse, pass"),
            (["serve", "--models", "m", "--log-format", "xml"], "'xml' is not one of text, json"),
            (["serve", "--models", "m", "--fast"], "unrecognized arguments: --fast"),
            (["serve", "--models-configmap", "models"], "'models' is not NAMESPACE/NAME"),
            (["serve", "--models-configmap", "a/b/c"], "'a/b/c' is not NAMESPACE/NAME"),
            (["serve", "--models-configmap", "/b"], "'/b' is not NAMESPACE/NAME"),
            (["serve", "--models-configmap", "a/"], "'a/' is not NAMESPACE/NAME"),
            (["serve", "--models-configmap", "a/B"], "'a/B' is not NAMESPACE/NAME"),
            (["serve", "--dns-server", "dns.example"], "'dns.example' is not IP or IP:PORT"),
            (["serve", "--dns-server", "10.0.0.1:x"], "'10.0.0.1:x' is not IP or IP:PORT"),
            (["serve", "--dns-server", "10.0.0.1:0"], "'10.0.0.1:0' is not IP or IP:PORT"),
            (["serve", "--dns-server", "[::1]"], "'[::1]' is not IP or IP:PORT"),
            (["check"], "required: FILE"),
            (["explain"], "required: --models"),
            (["explain", "--models", "m", "--header", "x"], "'x' is not NAME:VALUE"),
            (["explain", "--models", "m", "--header", ":x"], "':x' is not NAME:VALUE"),
            (["explain", "--models", "m", "--inflight", "10"], "'10' is not IP:PORT=N"),
            (["explain", "--models", "m", "--inflight", "a=-1"], "'a=-1' is not IP:PORT=N"),
            (["explain", "--models", "m", "--head", "x"], "'x' is not a number of bytes"),
            (["explain", "--models", "m", "--head=-1"], "-1"),
        ],
    )
    def test_reports_a_bad_argument_in_one_line(
        self, arguments: list[str], says: str, capsys: Capture
    ) -> None:
        line = refused(capsys, *arguments)
        assert says in line
        assert line.startswith("extproc")


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
        ],
    )
    def test_refuses_a_bad_environment_variable_like_a_flag(
        self, name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        monkeypatch.setenv(f"EXTPROC_{name}", value)
        assert repr(value) in refused(capsys, "serve", "--models", "m.yaml")

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
        assert str(port) in line
        assert all(" INFO " in line for line in logged)


@contextmanager
def refusing_name_server() -> Iterator[str]:
    """The address of a name server that answers every query with REFUSED."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            query, sock = self.request
            response = dns.message.make_response(dns.message.from_wire(query))
            response.set_rcode(dns.rcode.REFUSED)
            sock.sendto(response.to_wire(), self.client_address)

    with socketserver.UDPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        host, port = server.server_address[:2]
        yield f"{host!s}:{port}"
        server.shutdown()
        thread.join()


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


class TestExplain:
    def test_prints_the_steps(self, models: Path, body: Path, capsys: Capture) -> None:
        assert main(["explain", "--models", str(models), "--body", str(body)]) == 0
        steps = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert steps == [
            *["model", "adapter", "strategy", "prefix", "hash", "candidates"],
            *["10.0.0.2:8000", "10.0.0.1:8000", "endpoint"],
        ]

    def test_prints_one_json_object(self, models: Path, body: Path, capsys: Capture) -> None:
        assert main(["explain", "--models", str(models), "--body", str(body), "--json"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        told = json.loads(line)
        assert (told["model"], told["adapter"], told["strategy"]) == ("llama", "", "PrefixHash")
        assert (told["endpoint"], told["reason"]) == ("10.0.0.2:8000", "prefix")
        assert (told["prefix"], told["prefix_hash"]) == ("hello", "26c7827d889f6da3")
        assert [c["address"] for c in told["candidates"]] == ["10.0.0.2:8000", "10.0.0.1:8000"]
        assert told["error"] is None

    @pytest.mark.parametrize("source", [[], ["--body", "-"]])
    def test_reads_the_body_from_stdin(
        self,
        source: list[str],
        models: Path,
        capsys: Capture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BODY)))
        assert main(["explain", "--models", str(models), "--json", *source]) == 0
        assert json.loads(capsys.readouterr().out)["prefix"] == "hello"

    def test_accepts_loads_headers_path_and_head(
        self, models: Path, body: Path, capsys: Capture
    ) -> None:
        arguments = ["explain", "--models", str(models), "--body", str(body), "--json"]
        loads = ["--inflight", "10.0.0.2:8000=9", "--inflight", "10.0.0.1:8000=1"]
        assert main([*arguments, *loads]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["endpoint"], told["reason"]) == ("10.0.0.1:8000", "bound")
        assert [c["inflight"] for c in told["candidates"]] == [1, 9]

        assert main([*arguments, "--path", "/v1/embeddings"]) == 0
        assert json.loads(capsys.readouterr().out)["reason"] == "no_prefix"

        models.write_text(TWO)
        assert main([*arguments, "--head", "12"]) == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "invalid_request"

        assert main([*arguments, "--head", "12", "--header", "X-Model: llama"]) == 0
        assert json.loads(capsys.readouterr().out)["model"] == "llama"

    def test_prints_a_refusal_as_the_outcome(
        self, models: Path, body: Path, capsys: Capture
    ) -> None:
        body.write_text('{"model": "gpt"}')
        assert main(["explain", "--models", str(models), "--body", str(body), "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert told["error"]["status"] == 404
        assert told["error"]["code"] == "model_not_found"
        assert told["endpoint"] is None

    @pytest.mark.parametrize(("padding", "code"), [(8 << 20, 1), (200_000, 0)])
    def test_refuses_a_body_whose_model_is_beyond_the_limit(
        self, padding: int, code: int, models: Path, body: Path, capsys: Capture
    ) -> None:
        """Here `model` is the last key. Envoy sends bodies of up to 8 MiB whole."""
        models.write_text(TWO)
        body.write_text(
            json.dumps({"messages": [{"role": "user", "content": "x" * padding}], "model": "qwen"})
        )
        command = ["explain", "--models", str(models), "--body", str(body), "--json"]
        assert main(command) == code
        told = json.loads(capsys.readouterr().out)
        assert told["model"] == (None if code else "qwen")
        assert told["shown_bytes"] == (65_536 if code else told["body_bytes"])
        assert (told["error"] or {}).get("code") == ("invalid_request" if code else None)
        assert main([*command, "--header", "x-model: qwen"]) == 0

    @pytest.mark.parametrize("given", ["10.0.0.9:8000", "10.0.0.1", "vllm:8000", "10.0.0.1:1"])
    def test_refuses_a_load_on_an_unknown_endpoint(
        self, given: str, models: Path, body: Path, capsys: Capture
    ) -> None:
        command = ["explain", "--models", str(models), "--body", str(body)]
        assert main([*command, "--inflight", f"{given}=3"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == (
            f"extproc explain: --inflight {given}: no such endpoint; the document has "
            "10.0.0.1:8000, 10.0.0.2:8000\n"
        )

    def test_lists_only_some_of_many_endpoints(
        self, models: Path, body: Path, capsys: Capture
    ) -> None:
        many = ", ".join(f"10.0.0.{i}:80" for i in range(100, 200))
        models.write_text(f"models: [{{name: llama, endpoints: [{many}]}}]")
        command = ["explain", "--models", str(models), "--body", str(body)]
        assert main([*command, "--inflight", "x=3"]) == 2
        assert capsys.readouterr().err.endswith("10.0.0.119:80 and 80 more\n")

    def test_accepts_an_endpoint_in_any_spelling(
        self, models: Path, body: Path, capsys: Capture
    ) -> None:
        models.write_text("models: [{name: llama, endpoints: ['[2001:db8::1]:80']}]")
        command = ["explain", "--models", str(models), "--body", str(body), "--json"]
        assert main([*command, "--inflight", "[2001:DB8:0::1]:80=3"]) == 0
        (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
        assert (candidate["address"], candidate["inflight"]) == ("[2001:db8::1]:80", 3)

    def test_resolves_host_names(self, models: Path, body: Path, capsys: Capture) -> None:
        models.write_text("models: [{name: llama, endpoints: ['localhost:80', '10.0.0.1:80']}]")
        command = ["explain", "--models", str(models), "--body", str(body), "--json"]
        assert main([*command, "--inflight", "127.0.0.1:80=3"]) == 0
        told = json.loads(capsys.readouterr().out)
        loads = {one["address"]: one["inflight"] for one in told["candidates"]}
        assert loads == {"127.0.0.1:80": 3, "10.0.0.1:80": 0}

    def test_reports_a_host_name_that_does_not_resolve(
        self, models: Path, body: Path, capsys: Capture
    ) -> None:
        models.write_text("models: [{name: llama, endpoints: ['10.0.0.1:80', 'vllm.test:80']}]")
        # A stopped server would take a while to be given up; this one refuses at once.
        with refusing_name_server() as address:
            command = ["explain", "--models", str(models), "--body", str(body)]
            assert main([*command, "--dns-server", address]) == 2
        assert capsys.readouterr().err == (
            f"{models}: models[0].endpoints[1]: vllm.test does not resolve here: every name server "
            f"failed: {address.replace(':', '@')} REFUSED\n"
        )

    @pytest.mark.parametrize("missing", ["models", "body"])
    def test_reports_a_missing_file(
        self, missing: str, models: Path, body: Path, capsys: Capture
    ) -> None:
        {"models": models, "body": body}[missing].unlink()
        assert main(["explain", "--models", str(models), "--body", str(body)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("No such file or directory")
        assert missing in line

    def test_prints_a_line_for_every_problem(
        self, models: Path, body: Path, capsys: Capture
    ) -> None:
        models.write_text("models: [{name: a}, {name: b}]")
        assert main(["explain", "--models", str(models), "--body", str(body)]) == 2
        assert capsys.readouterr().err.splitlines() == [
            f"{models}: models[{i}]: give one of 'endpoints', 'service', 'inferencePool' and "
            "'split'"
            for i in (0, 1)
        ]

    @pytest.mark.parametrize("source", [BY_SERVICE, BY_POOL])
    def test_refuses_kubernetes_sources(
        self, source: str, models: Path, body: Path, capsys: Capture
    ) -> None:
        models.write_text(GOOD + "- " + source.removeprefix("models: [").replace("]\n", "\n"))
        assert main(["explain", "--models", str(models), "--body", str(body)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{models}: models[1]: explain does not read Kubernetes")
        assert "'endpoints'" in line

    def test_reads_the_models_from_the_environment(
        self, models: Path, body: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EXTPROC_MODELS", str(models))
        assert main(["explain", "--body", str(body)]) == 0

    def test_ends_silently_when_the_reader_closes_the_pipe(self, models: Path, body: Path) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        command = ["explain", "--models", str(models), "--body", str(body)]
        run = subprocess.run(
            [sys.executable, "-m", "extproc", *command], stdout=writing, stderr=subprocess.PIPE
        )
        os.close(writing)
        assert run.stderr == b""


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
