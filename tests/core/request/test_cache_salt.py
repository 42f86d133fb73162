"""`cache_salt` separates caches in vLLM, so it separates blocks and keys in the sidecar."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st

from extproc.core.conversation.head import Head
from extproc.core.conversation.request import Request
from extproc.core.request.blocks import MAX_BLOCKS, prompt_of
from extproc.core.request.json_limits import ALWAYS_PARSED_BYTES, MAX_PARSED_BYTES
from extproc.core.request.paths import Api
from extproc.core.request.routing_key import ring_key
from extproc.core.routing.resolved_request import ResolvedRequest
from tests.core import bodies
from tests.core.builders import brief, model_spec, router, split_spec
from tests.core.request.block_prompts import blocks_of

Json = dict[str, Any]

RULES = "Answer in one word. " * 200
MESSAGES = [{"role": "system", "content": RULES}, {"role": "user", "content": "hi"}]
SALTS = st.text(min_size=1, max_size=6)


def asked(salt: object = None, **fields: Any) -> Json:
    """Return a chat whose salt comes last: OpenAI's client puts unknown fields at the end."""
    return {"model": "llama", "messages": MESSAGES, **fields, "cache_salt": salt}


def resolved(document: Json, strategy: str = "PrefixHash", **key: Any) -> ResolvedRequest:
    body = json.dumps(document).encode()
    return Request(router(model_spec(strategy=strategy, **key))).resolve(body, complete=True)


class TestBlocks:
    @brief
    @given(bodies.documents, SALTS, SALTS)
    def test_different_salts_share_no_block(self, document: Json, one: str, other: str) -> None:
        assume(one != other)
        with blocks_of(2):
            prompts = [
                prompt_of(salted, "llama")
                for salted in (
                    document,
                    {**document, "cache_salt": one},
                    {**document, "cache_salt": other},
                )
            ]
        blocks = [
            {*prompt.blocks, *(b for more in prompt.other_chains for b in more)}
            for prompt in prompts
        ]
        assert blocks[0].isdisjoint(blocks[1])
        assert blocks[1].isdisjoint(blocks[2])
        assert len({prompt.bytes for prompt in prompts}) == 1

    @brief
    @given(bodies.documents, SALTS, st.text(max_size=4), st.text(max_size=4))
    def test_different_models_or_adapters_share_no_block(
        self, document: Json, salt: str, one: str, other: str
    ) -> None:
        assume(one != other)
        salted = {**document, "cache_salt": salt}
        with blocks_of(2):
            assert set(prompt_of(salted, one).blocks).isdisjoint(prompt_of(salted, other).blocks)
            assert prompt_of(salted, one) == prompt_of(dict(salted), one)

    @brief
    @given(st.lists(bodies.text, min_size=2, max_size=4), SALTS)
    def test_next_turn_with_the_same_salt_shares_the_blocks(
        self, texts: list[str], salt: str
    ) -> None:
        turns = [{"role": "user", "content": text} for text in texts]
        before, after = (
            prompt_of({"messages": messages, "cache_salt": salt}, "llama")
            for messages in (turns[:-1], turns)
        )
        assert after.blocks[: len(before.blocks)] == before.blocks

    def test_position_of_the_salt_does_not_matter(self) -> None:
        chains = {
            tuple(prompt_of(dict(fields), "llama").blocks)
            for fields in permutations(asked("a").items())
        }
        assert len(chains) == 1

    @pytest.mark.parametrize("salt", [None, "", 7, True, ["a"], {"a": "b"}, "a" * 4097])
    def test_invalid_salts_are_ignored(self, salt: object) -> None:
        plain = prompt_of({"messages": MESSAGES}, "llama")
        assert prompt_of(asked(salt), "llama") == plain
        text = f"\nsystem\n{RULES}".encode()[:256]
        assert plain.blocks[0] == xxhash.xxh64_intdigest(text, xxhash.xxh64_intdigest(b"llama"))


class TestRingKey:
    def test_empty_salt_does_not_change_it(self) -> None:
        assert resolved(asked()).key == ring_key("", "hi") == xxhash.xxh64_intdigest(b"hi")

    def test_differs_by_salt(self) -> None:
        keys = {resolved(asked(salt)).key for salt in (None, "a", "b")}
        assert len(keys) == 3
        assert resolved(asked("a")).key == ring_key("", "hi", "a")

    def test_is_none_without_a_prefix(self) -> None:
        assert ring_key("sql", "", "a") is None

    def test_spreads_eight_salts_over_the_endpoints(self) -> None:
        """With 8 salts, one system prompt is 8 prompts. One endpoint should not get them all."""
        endpoints = [f"10.0.0.{number}:8000" for number in range(8)]
        serving = router(model_spec(strategy="PrefixCache", endpoints=endpoints))
        chosen, hits = set(), []
        for salt in "abcdefgh":
            resolved_request = Request(serving).resolve(
                json.dumps(asked(salt)).encode(), complete=True
            )
            decision = serving.decide(resolved_request)
            decision.lease.release()
            chosen.add(decision.address)
            assert decision.prediction is not None
            hits.append(decision.prediction.hit)
        assert hits == [0.0] * 8
        assert len(chosen) > 1

    def test_salt_does_not_change_the_target_of_a_split(self) -> None:
        serving = router(model_spec("a"), model_spec("b"), split_spec("canary", a=1, b=1))
        for number in range(20):
            messages = [{"role": "user", "content": f"question {number}"}]
            targets = {
                serving.resolve(
                    "canary", {"messages": messages, "cache_salt": salt}, {}
                ).model.spec.name
                for salt in "abc"
            }
            assert len(targets) == 1


class TestLargeBody:
    LONG = "word " * (ALWAYS_PARSED_BYTES // 5 + 1)

    @pytest.mark.parametrize("times", [1, 12])
    @pytest.mark.parametrize("filler", ["word ", "QUJD", "[1], "])
    @pytest.mark.parametrize("strategy", ["PrefixHash", "PrefixCache"])
    def test_salt_after_the_prompt_is_found(self, strategy: str, filler: str, times: int) -> None:
        more = [{"role": "user", "content": filler * (times * ALWAYS_PARSED_BYTES // len(filler))}]
        found = []
        for salt in (None, "a", "b"):
            document = {"messages": MESSAGES + more, "cache_salt": salt, "model": "llama"}
            assert len(json.dumps(document)) > ALWAYS_PARSED_BYTES
            found.append(resolved(document, strategy))
        assert len({one.key for one in found}) == 3
        assert found[1].key == ring_key("", "hi", "a")
        if strategy == "PrefixCache":
            assert len({one.prompt.blocks[0] for one in found if one.prompt}) == 3

    @pytest.mark.parametrize("salt", ["7", "[[]]", '{"a": 1}', '"' + "x" * 70_000 + '"', "9" * 70])
    def test_invalid_salt_is_ignored(self, salt: str) -> None:
        body = json.dumps({"model": "llama", "messages": MESSAGES, "x": self.LONG})
        salted = f'{body[:-1]}, "cache_salt": {salt}}}'.encode()
        assert Request(router()).resolve(salted, complete=True).key == ring_key("", "hi")


class TestBodyInParts:
    def head(self, **key: Any) -> Head:
        return Head(Request(router(model_spec(**key)), Api.GENERATE, {"x-session": b"s"}))

    def test_decision_waits_while_a_salt_may_follow(self) -> None:
        body = json.dumps(asked("a", stream=True)).encode()
        held = self.head(prefixCharLength=2)
        assert held.add(body[:-40]) is None
        assert held.end(body[-40:]).key == ring_key("", "hi", "a")

    def test_decision_does_not_wait_after_the_salt(self) -> None:
        body = json.dumps(
            {"cache_salt": "a", "model": "llama", "messages": MESSAGES, "n": 1}
        ).encode()
        resolved_request = self.head(prefixCharLength=2).add(body[:-3])
        assert resolved_request is not None
        assert resolved_request.key == ring_key("", "hi", "a")

    def test_decision_does_not_wait_for_a_session_key(self) -> None:
        assert self.head(prefixSource="Header:x-session").add(b'{"model": "llama", "m') is not None


def test_salt_after_an_image_of_some_megabytes_is_found() -> None:
    """Base64 does not count towards the parsed bytes."""
    url = {"url": "data:image/jpeg;base64," + "QUJDRE" * (MAX_PARSED_BYTES // 2)}
    image = {"type": "image_url", "image_url": url}
    rules = {"role": "system", "content": RULES}

    def blocks(question: str) -> list[int]:
        asked = {"role": "user", "content": [image, {"type": "text", "text": question}]}
        document = {"model": "llama", "messages": [rules, asked]}
        prompt = resolved(document, "PrefixCache").prompt
        assert prompt is not None
        assert prompt.is_complete
        assert len(prompt.blocks) < MAX_BLOCKS
        return list(prompt.blocks)

    one, other = blocks("What is this? " * 40), blocks("Who is this? " * 40)
    shared = sum(a == b for a, b in zip(one, other, strict=False))
    assert 31 <= shared < len(one)
