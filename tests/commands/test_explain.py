"""The command `extproc explain`."""

from __future__ import annotations

import io
import json
import os
import socketserver
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import dns.message
import dns.rcode
import pytest

from extproc.cli import main
from tests.commands.documents import BODY, BY_POOL, BY_SERVICE, GOOD, TWO

Capture = pytest.CaptureFixture[str]


@contextmanager
def refusing_name_server() -> Iterator[str]:
    """Yield the address of a name server that answers every query with REFUSED."""

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

    @pytest.mark.parametrize("count", ["100001", "9" * 30, "9" * 5_000])
    def test_refuses_more_requests_than_it_counts(
        self, models: Path, body: Path, capsys: Capture, count: str
    ) -> None:
        command = ["explain", "--models", str(models), "--body", str(body)]
        with pytest.raises(SystemExit) as ended:
            main([*command, "--inflight", f"10.0.0.1:8000={count}"])
        assert ended.value.code == 2
        assert "more than 100,000 requests" in capsys.readouterr().err

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
