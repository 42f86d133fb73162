"""The process of a stand-in server, and its diagnostic headers."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import signal
import subprocess
import sys
import time

import aiohttp
import pytest

from extproc.lab.stand_ins.arguments import parse
from tests.extent import PATIENCE
from tests.lab.stand_ins.server import (
    CHAT,
    Server,
    ask,
    chat,
    encoded,
    run,
    stand_in,
    stand_in_program,
)


class TestDiagnostics:
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            (CHAT, encoded(chat("hello"))),
            (CHAT, encoded(chat("hello", stream=True))),
            (CHAT, b"not json"),
            ("/v1/embeddings", b"\x00\x01"),
            ("/stand-in/reset-cache", b""),
        ],
    )
    @pytest.mark.parametrize("replica", [0, 1])
    def test_response_to_a_post_describes_the_received_body(
        self, fast: Server, path: str, body: bytes, replica: int
    ) -> None:
        headers = fast.post(path, body, replica).headers
        assert headers["x-stand-in-port"] == str(fast.ports[replica])
        assert headers["x-stand-in-body-bytes"] == str(len(body))
        assert headers["x-stand-in-body-md5"] == hashlib.md5(body).hexdigest()

    def test_large_bodies_are_received_completely(self, fast: Server) -> None:
        body = bytes(8 * 2**20)
        answer = fast.post("/v1/audio/transcriptions", body)
        assert answer.headers["x-stand-in-body-md5"] == hashlib.md5(body).hexdigest()

    def test_compressed_bodies_are_not_decompressed(self, fast: Server) -> None:
        body = gzip.compress(b"hello")
        answer = fast.post("/v1/embeddings", body, headers={"content-encoding": "gzip"})
        assert answer.headers["x-stand-in-body-md5"] == hashlib.md5(body).hexdigest()

    @pytest.mark.parametrize(
        "path", ["/v1/audio/speech", "/v1/images/edits", "/inference/v1/generate", "/invocations"]
    )
    def test_other_apis_return_the_size_of_the_body(self, fast: Server, path: str) -> None:
        answer = fast.post(path, b"12345")
        assert answer.status == 200
        assert answer.json == {"object": "stand-in", "path": path, "bytes": 5}


class TestProcess:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_stops_cleanly_with_running_requests(self, number: signal.Signals) -> None:
        async def ask_and_stop(process: subprocess.Popen[bytes], server: Server) -> None:
            body = encoded(chat("hello", max_tokens=1_000, stream=True))
            asking = asyncio.create_task(ask("POST", server.url(CHAT), body))
            await asyncio.sleep(0.2)
            process.send_signal(number)
            # The connection breaks; any error of the client library is fine.
            await asyncio.gather(asking, return_exceptions=True)

        with stand_in_program("--ports", "0,0", "--announce") as (process, server):
            run(ask_and_stop(process, server))
            assert process.wait(PATIENCE) == 0

    def test_reports_a_used_port_in_one_line(self, fast: Server) -> None:
        command = [
            sys.executable,
            "-m",
            "extproc.lab.stand_ins.vllm",
            "--ports",
            str(fast.ports[0]),
        ]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert result.returncode == 1
        assert result.stderr.startswith("stand-in vLLM: cannot listen on 127.0.0.1")
        assert result.stderr.count("\n") == 1

    def test_announces_ports_that_the_kernel_chooses(self) -> None:
        assert parse(["--ports", "0"]).announce
        assert not parse(["--ports", "8001"]).announce
        assert parse(["--ports", "8001", "--announce"]).announce

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["--ports", "x"],
            ["--ports", "70000"],
            ["--ports", "0", "--time-scale", "0"],
            ["--ports", "0", "--time-scale", "nan"],
            ["--ports", "0", "--kv-tokens", "15"],
            ["--ports", "0", "--max-num-seqs", "0"],
            ["--ports", "0", "--adapters", "a"],
            ["--ports", "0", "--adapters", "a", "--model", "b,a", "--max-loras", "1"],
            ["--ports", "0", "--max-loras", "0"],
            ["--ports", "0", "--max-loras", "2", "--max-cpu-loras", "1"],
            ["--ports", "0", "--max-loras", "1", "--lora-load-seconds", "-1"],
            ["--ports", "0", "--metrics-padding", "-1"],
        ],
    )
    def test_refuses_invalid_arguments(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as exit_:
            parse(arguments)
        assert exit_.value.code == 2

    def test_sizes_of_cache_and_batch_are_arguments(self) -> None:
        profile = parse(["--ports", "0", "--kv-tokens", "1600", "--max-num-seqs", "4"]).profile
        assert (profile.kv_blocks, profile.max_num_seqs) == (100, 4)

    def test_lora_is_off_by_default(self) -> None:
        assert parse(["--ports", "0"]).profile.max_loras == 0
        arguments = ["--max-loras", "2", "--max-cpu-loras", "4", "--lora-load-seconds", "0"]
        profile = parse(["--ports", "0", *arguments]).profile
        assert (profile.max_loras, profile.max_cpu_loras) == (2, 4)
        assert profile.lora_load_seconds == 0

    def test_metrics_may_be_old_and_large(self) -> None:
        arguments = ["--old-metric-names", "--metrics-padding", "50000"]
        with stand_in("--ports", "0", *arguments) as server:
            text = server.get("/metrics").body
        assert len(text) > 50_000
        assert b"vllm:gpu_cache_usage_perc{" in text
        assert b"vllm:kv_cache_usage_perc" not in text

    def test_many_streams_keep_the_speed_of_the_model(self) -> None:
        """Four replicas with thirty streams each, ten times faster than real time."""

        async def crowd(server: Server) -> float:
            start = time.perf_counter()
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

                async def one(replica: int) -> bytes:
                    body = chat("hello", stream=True, max_tokens=100)
                    async with session.post(server.url(CHAT, replica), json=body) as response:
                        return await response.read()

                answers = await asyncio.gather(*(one(i % 4) for i in range(120)))
            assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
            return time.perf_counter() - start

        with stand_in("--ports", "0,0,0,0", "--time-scale", "10") as server:
            # A hundred steps of 41 ms and more, plus admissions: 0.45 s if nothing else took time.
            # The upper limit only detects a server whose time grows with the number of streams.
            assert 0.4 < run(crowd(server)) < 40
