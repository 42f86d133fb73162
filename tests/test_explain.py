from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from extproc.cli import main
from extproc.core.conversation.events import Event, Kind
from extproc.core.conversation.head import HEAD_LIMIT
from extproc.core.conversation.state_machine import Conversation
from extproc.core.routing.decision import Decision
from extproc.core.schema import ModelSpec, ModelsSpec
from extproc.explain import WHOLE_BYTES, explain, explain_now, shown
from extproc.explanation import ExplainedFlow, Explanation
from tests.core.builders import TWO_ADDRESSES, brief, model_spec, router, split_spec
from tests.core.flow_control.scene import Flow

CHAT = "/v1/chat/completions"
LLAMA = model_spec("llama", adapters=["sql"])


def explained(
    *specs: ModelSpec,
    body: object = None,
    head: int | None = None,
    path: str = CHAT,
    headers: dict[str, str] | None = None,
    inflight: dict[str, int] | None = None,
) -> Explanation:
    asked = {"model": "llama", "messages": [{"role": "user", "content": "hello"}]}
    raw = json.dumps(asked if body is None else body).encode()
    return explain(
        ModelsSpec(models=specs or (LLAMA,)),
        raw[:head],
        length=len(raw),
        path=path,
        headers=headers or {},
        inflight=inflight or {},
    )


def test_explains_each_step() -> None:
    explanation = explained()
    assert explanation.model == "llama"
    assert explanation.adapter == ""
    assert explanation.strategy == "PrefixHash"
    assert explanation.prefix == "hello"
    assert explanation.prefix_hash == f"{xxhash.xxh64_intdigest(b'hello'):016x}"
    assert explanation.reason == "prefix"
    assert explanation.bound is None
    assert explanation.error is None
    assert explanation.candidates[0].address == explanation.endpoint
    assert sorted(c.address for c in explanation.candidates) == sorted(TWO_ADDRESSES)


@pytest.mark.parametrize("strategy", ["PrefixHash", "PrefixCache"])
def test_names_the_source_of_a_session(strategy: str) -> None:
    model = model_spec("llama", strategy=strategy, prefixSource="Session")
    rules = {"role": "system", "content": "rules " * 1000}
    messages = [rules, {"role": "user", "content": "hello"}]
    body = {"model": "llama", "messages": messages, "prompt_cache_key": "s-2"}
    for headers, prefix, source in (
        ({"Session-Id": "s-1"}, "s-1", "Header:session-id"),
        ({}, "s-2", "Body:prompt_cache_key"),
    ):
        explanation = explained(model, body=body, headers=headers)
        assert (explanation.prefix, explanation.session) == (prefix, source)
        assert f"session     from {source}" in explanation.lines()
        if explanation.prompt is not None:
            assert explanation.prompt.home_by == "the hash"
    without = explained(model, body={"model": "llama", "messages": messages})
    assert (without.prefix, without.session) == ("hello", None)
    assert not any(line.startswith("session") for line in without.lines())
    if without.prompt is not None:
        assert without.prompt.home_by == "the system prompt"


def test_adds_up_the_blocks_of_several_prompts() -> None:
    model = model_spec("llama", strategy="PrefixCache")
    body = {"model": "llama", "prompt": ["a" * 1000, "b" * 2000]}
    explanation = explained(model, body=body, path="/v1/completions")
    assert explanation.prompt is not None
    assert (explanation.prompt.bytes, explanation.prompt.blocks) == (3002, 3 + 7)


def test_salt_changes_the_hash_and_not_the_prefix() -> None:
    asked = {"model": "llama", "messages": [{"role": "user", "content": "hello"}]}
    plain, salted = (explained(body={**asked, **salt}) for salt in ({}, {"cache_salt": "a"}))
    assert plain.prefix == salted.prefix == "hello"
    assert plain.prefix_hash != salted.prefix_hash


@brief
@given(st.text(min_size=1, max_size=20))
def test_chooses_the_endpoint_of_serve(content: str) -> None:
    body = {"model": "llama", "messages": [{"role": "user", "content": content}]}
    serving = router(LLAMA)
    conversation = Conversation(serving, None)  # type: ignore[arg-type]  # no dice are thrown
    conversation.receive(
        Event(Kind.REQUEST_BODY, body=json.dumps(body).encode(), end_of_stream=True)
    )
    assert isinstance(conversation.verdict, Decision)
    assert explained(body=body).endpoint == conversation.verdict.address


def test_uses_assumed_loads() -> None:
    home = explained().endpoint
    assert home is not None
    (other,) = set(TWO_ADDRESSES) - {home}
    explanation = explained(inflight={home: 9, other: 1})
    assert (explanation.endpoint, explanation.reason) == (other, "bound")
    assert explanation.bound == pytest.approx((10 + 1) / 2 * 1.25)
    assert [(c.address, c.inflight, c.hops, c.reason) for c in explanation.candidates] == [
        (other, 1, 1, "bound"),
        (home, 9, 0, "over_bound"),
    ]


def test_names_the_adapter_and_hashes_it() -> None:
    explanation = explained(body={"model": "sql", "prompt": "hello"}, path="/v1/completions")
    assert (explanation.model, explanation.adapter) == ("llama", "sql")
    assert explanation.prefix_hash == f"{xxhash.xxh64_intdigest(b'sqlhello'):016x}"


def test_shows_a_missing_prefix() -> None:
    explanation = explained(body={"model": "llama", "input": "hello"}, path="/v1/embeddings")
    assert (explanation.prefix, explanation.prefix_hash) == ("", None)
    assert explanation.reason == "no_prefix"
    assert "prefix      - (none)" in list(explanation.lines())


def test_reads_headers_in_any_case() -> None:
    spec = model_spec("llama", prefixSource="Header:x-session")
    assert explained(spec, headers={"X-Session": "s1"}).prefix == "s1"


def test_reads_a_cut_body_like_serve() -> None:
    qwen = model_spec("qwen", endpoints=["10.0.1.1:8000"])
    body = {"messages": [{"role": "user", "content": "hello"}], "model": "qwen"}
    cut = explained(LLAMA, qwen, body=body, head=40)
    assert cut.error is not None
    assert (cut.error["status"], cut.error["code"]) == (400, "invalid_request")
    named = explained(LLAMA, qwen, body=body, head=40, headers={"x-model": "qwen"})
    assert named.endpoint == "10.0.1.1:8000"


@pytest.mark.parametrize(
    ("length", "seen"),
    [(0, 0), (WHOLE_BYTES, WHOLE_BYTES), (WHOLE_BYTES + 1, HEAD_LIMIT)],
)
def test_cuts_large_bodies_like_envoy(length: int, seen: int) -> None:
    assert len(shown(b"x" * length)) == seen


def test_lines_show_how_much_of_a_cut_body_is_read() -> None:
    qwen = model_spec("qwen", endpoints=["10.0.1.1:8000"])
    body = {"messages": [{"role": "user", "content": "x" * 1_000}], "model": "qwen"}
    line = "shown       40 of 1,064 bytes of the body"
    assert line in list(explained(LLAMA, qwen, body=body, head=40).lines())
    named = explained(LLAMA, qwen, body=body, head=40, headers={"x-model": "qwen"})
    assert line in list(named.lines())
    assert (named.shown_bytes, named.body_bytes) == (40, 1_064)
    assert not any("shown" in one for one in explained().lines())


@pytest.mark.parametrize(
    ("body", "path", "status", "code"),
    [
        ({"model": "gpt"}, CHAT, 404, "model_not_found"),
        ({"model": ""}, CHAT, 400, "invalid_request"),
        ([], CHAT, 400, "invalid_request"),
        ({"model": "llama"}, "/nowhere", 404, "unknown_path"),
    ],
)
def test_shows_only_a_refusal(body: object, path: str, status: int, code: str) -> None:
    explanation = explained(body=body, path=path)
    assert explanation.error is not None
    assert (explanation.error["status"], explanation.error["code"]) == (status, code)
    assert (explanation.endpoint, explanation.candidates) == (None, [])
    first, second = explanation.lines()
    assert first.split() == ["refused", str(status), code]
    assert second.strip() == explanation.error["message"]


def test_lines_have_each_step() -> None:
    home = explained().endpoint
    assert home is not None
    (other,) = set(TWO_ADDRESSES) - {home}
    lines = list(explained(inflight={home: 1, other: 1}).lines())
    assert lines == [
        "model       llama",
        "adapter     -",
        "strategy    PrefixHash",
        "prefix      'hello'",
        f"hash        {xxhash.xxh64_intdigest(b'hello'):016x}",
        "bound       1.875 requests in flight",
        "candidates  in the order of preference",
        f"            {home}  in flight 1  hops 0  prefix",
        f"            {other}  in flight 1  hops 1  bound",
        f"endpoint    {home} (prefix)",
    ]


def test_json_has_the_documented_keys() -> None:
    told = json.loads(json.dumps(explained().as_dict()))
    documented = {
        *["model", "adapter", "strategy", "endpoint", "reason", "prefix", "prefix_hash"],
        *["candidates", "error"],
    }
    assert documented <= set(told)
    for candidate in told["candidates"]:
        assert {"address", "inflight", "hops"} <= set(candidate)
    refused = explained(body={"model": ""}).as_dict()
    assert isinstance(refused["error"], dict)
    assert set(refused["error"]) == {"status", "code", "message"}
    assert documented <= set(refused)


def test_shows_the_new_name_of_an_alias() -> None:
    aliased = model_spec("llama", aliases=["l3"])
    explanation = explained(aliased, body={"model": "l3", "prompt": "hello"})
    assert (explanation.model, explanation.rename) == ("llama", "llama")
    assert "renamed     the body's model becomes 'llama'" in explanation.lines()
    assert explained(aliased).rename is None


def test_shows_the_target_of_a_split() -> None:
    explanation = explained(LLAMA, split_spec(llama=1), body={"model": "canary", "prompt": "hi"})
    assert (explanation.model, explanation.rename) == ("llama", "llama")


def test_shows_that_there_are_no_signals() -> None:
    explanation = explained(
        model_spec("llama", strategy="LowLatency"), inflight={TWO_ADDRESSES[0]: 3}
    )
    assert explanation.endpoint == TWO_ADDRESSES[1]
    assert any(line.startswith("signals     none here") for line in explanation.lines())
    assert not any(line.startswith("signals") for line in explained().lines())


class TestStrategyThatComparesPrompts:
    CACHE = model_spec("llama", strategy="PrefixCache")

    def explained(self, *, system: int = 0, user: int = 0, **more: Any) -> Explanation:
        """Explain a conversation with this number of bytes in each part."""
        messages = [{"role": "user", "content": "u" * user}]
        if system:
            messages.insert(0, {"role": "system", "content": "s" * system})
        specs = more.pop("specs", (self.CACHE,))
        return explained(*specs, body={"model": "llama", "messages": messages}, **more)

    def test_shows_the_prompt_and_an_empty_index(self) -> None:
        explanation = self.explained(system=3_000, user=600)
        assert (explanation.endpoint in TWO_ADDRESSES, explanation.reason) == (True, "cold")
        assert explanation.prompt is not None
        assert (explanation.prompt.blocks, explanation.prompt.system_blocks) == (14, 11)
        lines = list(explanation.lines())
        assert (
            "prompt      3,614 bytes; read 14 blocks of 256, 11 of them tools and system prompt"
            in (lines)
        )
        assert "index       empty here: no cached blocks are known" in lines
        assert "home        on the ring by the system prompt" in lines

    @pytest.mark.parametrize(
        ("spec", "user", "home_by"),
        [
            (CACHE, 600, "the hash"),
            (CACHE, 0, "chance"),
            (
                model_spec("llama", strategy="PrefixCache", prefixSource="Header:x-session"),
                600,
                "chance",
            ),
        ],
    )
    def test_shows_the_source_of_the_ring_key(
        self, spec: ModelSpec, user: int, home_by: str
    ) -> None:
        explanation = self.explained(user=user, specs=(spec,))
        assert f"home        on the ring by {home_by}" in list(explanation.lines())

    def test_counts_the_bytes_beyond_a_cut_body(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        models, body = tmp_path / "models.yaml", tmp_path / "body.json"
        endpoints = "[10.0.0.1:8000, 10.0.0.2:8000]"
        strategy = "{strategy: PrefixCache}"
        models.write_text(
            f"models: [{{name: llama, endpoints: {endpoints}, loadBalancing: {strategy}}}]"
        )
        body.write_text(json.dumps({"model": "llama", "prompt": "x" * 60_000}))
        command = ["explain", "--models", str(models), "--body", str(body)]
        assert main([*command, "--head", "20000", "--json"]) == 0
        prompt = json.loads(capsys.readouterr().out)["prompt"]
        assert prompt["blocks"] == 78
        assert prompt["bytes"] == pytest.approx(60_000, rel=0.01)

    def test_shows_no_prompt_without_one(self) -> None:
        body = {"model": "llama", "input": "hello"}
        explanation = explained(self.CACHE, body=body, path="/v1/embeddings")
        assert explanation.endpoint in TWO_ADDRESSES
        assert explanation.prompt is None
        assert not any(line.startswith(("prompt", "index")) for line in explanation.lines())

    def test_json_has_numbers(self) -> None:
        told = json.loads(json.dumps(self.explained(user=600).as_dict()))
        assert told["prompt"] == {
            "bytes": 606,
            "blocks": 2,
            "system_blocks": 0,
            "home_by": "the hash",
        }
        assert explained().as_dict()["prompt"] is None


@pytest.mark.parametrize(
    ("flow", "inflight", "waits"),
    [({"maxInflight": 2}, 1, False), ({"maxInflight": 2}, 2, True), ({}, 5, None)],
)
def test_says_if_the_request_waits_for_room(
    flow: dict[str, int], inflight: int, waits: bool | None
) -> None:
    document = LLAMA.model_dump(by_alias=True, exclude_unset=True) | {"flowControl": flow}
    spec = ModelSpec.model_validate(document)
    explanation = explained(spec, inflight=dict.fromkeys(TWO_ADDRESSES, inflight))
    assert explanation.flow_control is not None
    assert explanation.flow_control.waits is waits
    assert any(line.startswith("flow ") for line in explanation.lines())


def test_without_flow_control_no_line_mentions_it() -> None:
    assert explained().flow_control is None
    assert not any(line.startswith("flow ") for line in explained().lines())


@pytest.mark.parametrize("busy", [False, True])
def test_on_a_running_sidecar_it_reads_the_limits(busy: bool) -> None:
    flow = Flow(endpoints=2)
    if busy:
        flow.fill()
        flow.send("waiting")
    body = json.dumps({"model": "llama", "prompt": "hello"}).encode()
    found = explain_now(flow.router, body, "/v1/completions", {}, flow=flow.control)
    assert found.flow_control == ExplainedFlow(busy, 1 if busy else 0)
    assert found.endpoint is not None
    assert flow.control.waiting == (1 if busy else 0), "nothing changed"


@pytest.mark.parametrize(("objective", "waits"), [("chat", False), ("batch", True), ("", True)])
def test_on_a_running_sidecar_room_stays_free_for_a_higher_class(
    objective: str, waits: bool
) -> None:
    flow = Flow(endpoints=1, classes=[{"name": "chat", "priority": 1}])
    assert flow.flow is not None
    flow.flow["maxInflight"] = 16
    flow.publish()
    for _ in range(15):
        flow.send(objective="chat")
    body = json.dumps({"model": "llama", "prompt": "hello"}).encode()
    headers = {"x-gateway-inference-objective": objective}
    found = explain_now(flow.router, body, "/v1/completions", headers, flow=flow.control)
    assert found.flow_control == ExplainedFlow(waits, 0)
    assert flow.control.of("llama").queue.classes.keys() == {"chat"}, "nothing changed"
