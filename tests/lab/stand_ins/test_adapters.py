"""LoRA adapters of a stand-in server."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.extent import PATIENCE
from tests.lab.stand_ins.server import (
    CHAT,
    LONG_WORDS,
    HttpResponse,
    Server,
    ask,
    cached_tokens,
    chat,
    encoded,
    run,
    stand_in,
)


class TestAdapters:
    def adapters(self, server: Server) -> list[str]:
        """Return the models that /v1/models lists."""
        models = server.get("/v1/models").json["data"]
        return [model["id"] for model in models if model["parent"] is not None]

    def load(self, server: Server, name: str, **more: object) -> HttpResponse:
        body = {"lora_name": name, "lora_path": f"/{name}", **more}
        return server.post("/v1/load_lora_adapter", body)

    def unload(self, server: Server, name: str) -> HttpResponse:
        return server.post("/v1/unload_lora_adapter", {"lora_name": name})

    def test_response_has_the_name_of_the_adapter(self, lora: Server) -> None:
        assert lora.post(CHAT, chat("hello", model="a")).json["model"] == "a"

    def test_other_names_mean_an_unnamed_base_model(self, lora: Server) -> None:
        assert lora.post(CHAT, chat("hello", model="whatever")).status == 200

    def test_other_names_are_unknown_if_the_base_model_has_names(self) -> None:
        arguments = ["--model", "base", "--adapters", "a", "--max-loras", "1"]
        with stand_in("--ports", "0", "--time-scale", "50", *arguments) as server:
            statuses = [
                server.post(CHAT, chat("hello", model=model)).status
                for model in ("base", "a", None, "whatever")
            ]
            assert statuses == [200, 200, 200, 404]
            # The default is never an adapter.
            assert b'model_name="base"' in server.get("/metrics").body

    def test_each_adapter_has_its_own_prefix_cache(self, lora: Server) -> None:
        lora.reset()
        asked = [("m", 0), ("a", 0), ("b", 0), ("a", 1), ("m", 1), ("other name of m", 1)]
        for model, found in asked:
            answer = lora.post(CHAT, chat(LONG_WORDS, model=model, max_tokens=1))
            assert (cached_tokens(answer) > 0) == found

    def test_models_name_the_parent_of_an_adapter(self, lora: Server) -> None:
        base, a, _ = lora.get("/v1/models").json["data"]
        assert (base["id"], base["root"], base["parent"]) == ("stand-in", "stand-in", None)
        assert (a["id"], a["root"], a["parent"]) == ("a", "/adapters/a", "stand-in")
        assert (base["max_model_len"], a["max_model_len"]) == (16384, None)

    def test_initial_adapters_are_loaded(self) -> None:
        arguments = ["--adapters", "a,b", "--max-loras", "2", "--lora-load-seconds", "1000"]
        with stand_in("--ports", "0", *arguments) as server:
            assert server.post(CHAT, chat("hello", model="a", max_tokens=1)).status == 200

    def test_loads_and_unloads_an_adapter(self, lora: Server) -> None:
        answer = self.load(lora, "new")
        assert answer.status == 200
        assert answer.body == b"Success: LoRA adapter 'new' added successfully."
        assert self.adapters(lora) == ["a", "b", "new"]
        assert lora.post(CHAT, chat("hello", model="new")).status == 200
        answer = self.unload(lora, "new")
        assert answer.status == 200
        assert answer.body == b"Success: LoRA adapter 'new' removed successfully."
        assert self.adapters(lora) == ["a", "b"]

    def test_each_replica_has_its_own_adapters(self, lora: Server) -> None:
        self.load(lora, "own")
        ids = [model["id"] for model in lora.get("/v1/models", replica=1).json["data"]]
        self.unload(lora, "own")
        assert ids == ["stand-in", "a", "b"]

    def test_loading_takes_time(self) -> None:
        arguments = ["--max-loras", "1", "--lora-load-seconds", "10"]
        with stand_in("--ports", "0", "--time-scale", "50", *arguments) as server:
            start = time.perf_counter()
            self.load(server, "a")
            assert 0.2 < time.perf_counter() - start < PATIENCE

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            (b"", None),
            (b"[]", None),
            (b"[" * 100_000, None),
            (b"{}", "body.lora_name"),
            (b'{"lora_name": 7, "lora_path": "/x"}', "body.lora_name"),
            (b'{"lora_name": "x"}', "body.lora_path"),
            (b'{"lora_name": "", "lora_path": "/x"}', None),
        ],
    )
    def test_invalid_load_request_is_400(
        self, lora: Server, body: bytes, param: str | None
    ) -> None:
        answer = lora.post("/v1/load_lora_adapter", body)
        assert answer.status == answer.json["error"]["code"] == 400
        assert answer.json["error"]["param"] == param

    def test_second_load_needs_load_inplace(self, lora: Server) -> None:
        answer = self.load(lora, "a")
        assert answer.status == 400
        assert answer.json["error"]["type"] == "InvalidUserInput"
        assert answer.json["error"]["message"].startswith(
            "The lora adapter 'a' has already been loaded."
        )
        assert self.load(lora, "a", load_inplace=True).status == 200

    def test_unloading_an_unknown_adapter_is_404(self, lora: Server) -> None:
        answer = self.unload(lora, "unknown")
        assert answer.status == 404
        assert answer.json["error"]["message"] == "The lora adapter 'unknown' cannot be found."
        assert self.unload(lora, "").status == 400

    def test_paths_are_404_without_lora(self, fast: Server) -> None:
        assert self.load(fast, "a").status == self.unload(fast, "a").status == 404

    def test_loading_is_not_counted_as_a_request(self, lora: Server) -> None:
        lora.reset()
        self.load(lora, "uncounted")
        self.unload(lora, "uncounted")
        assert lora.requests()["total"] == 0

    @pytest.mark.parametrize(
        ("more", "waiting"), [([], "a,b"), (["--old-metric-names"], "c")], ids=["0.32", "older"]
    )
    def test_metrics_list_the_adapters_of_requests(self, more: list[str], waiting: str) -> None:
        labels = f'running_lora_adapters="a,b",waiting_lora_adapters="{waiting}"}}'

        async def crowd(server: Server) -> None:
            asking = []
            for model in ("a", "b", "c"):
                body = encoded(chat("hello", model=model, max_tokens=1_000, stream=True))
                asking.append(asyncio.create_task(ask("POST", server.url(CHAT), body)))
                await seen(server, "/load", f'{{"server_load": {len(asking)}}}')
            await seen(server, "/metrics", labels)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

        async def seen(server: Server, path: str, text: str) -> None:
            async with asyncio.timeout(PATIENCE):
                while text.encode() not in (await ask("GET", server.url(path))).body:
                    await asyncio.sleep(0.01)

        arguments = ["--adapters", "a,b,c", "--max-loras", "2", "--max-cpu-loras", "3"]
        with stand_in("--ports", "0", *arguments, *more) as server:
            run(crowd(server))

    def test_metrics_without_lora_have_no_adapters(self, fast: Server) -> None:
        assert b"lora" not in fast.get("/metrics").body
