"""Response bodies: the end of the prefill, and the real cache hit."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import Any

import pytest

from extproc.core.conversation.events import BodyMode, Chunk, Event, Kind, Modes, Proceed, Replies
from extproc.core.conversation.head import HEAD_LIMIT
from extproc.core.conversation.state_machine import Conversation
from extproc.core.conversation.usage import Usage
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.load_report import ResponseVisibility
from extproc.core.request.blocks import BYTES_PER_TOKEN
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from extproc.core.strategies import build
from tests.core.builders import TWO_ADDRESSES, model_spec

CHAT = "/v1/chat/completions"
CHUNK = b'data: {"choices": [{"delta": {"content": "word"}}]}\n\n'
TOLD = b'data: {"choices": [], "usage": {"prompt_tokens": 400, "prompt_tokens_details": %s}}\n\n'
LAST = TOLD % b'{"cached_tokens": 384}'
DONE = b"data: [DONE]\n\n"
MODES = pytest.mark.parametrize("mode", list(BodyMode))


class Gateway:
    """A sidecar with one model."""

    def __init__(self, strategy: str = "PrefixCache") -> None:
        fleet = Fleet()
        self.signals = fleet.signals
        self.signals.set_endpoints(TWO_ADDRESSES)
        spec = model_spec("llama", aliases=["l"], adapters=["sql"], strategy=strategy)
        make = partial(build, rng=Random(0), signals=self.signals)
        self.router = Router(fleet, revise(Catalog(), [spec], make))

    def request(self, mode: BodyMode = BodyMode.DUPLEX, **how: Any) -> Stream:
        """Send a request, and return its stream."""
        return Stream(self.router, mode, **how)

    @property
    def bytes_per_token(self) -> float:
        return self.router.fleet.signals.token_sizes.of("llama")


class Stream:
    """One request up to the decision, then its response."""

    def __init__(
        self,
        router: Router,
        mode: BodyMode,
        *,
        request_mode: BodyMode = BodyMode.BUFFERED,
        path: str = CHAT,
        model: str = "llama",
        content: str = "x" * 1000,
        whole: bool = True,
        shows_headers: bool = True,
    ) -> None:
        visibility = ResponseVisibility()
        visibility.response_headers = shows_headers
        self.conversation = Conversation(router, Random(0), visibility=visibility)
        named = {":method": b"POST", ":path": path.encode()}
        modes = Modes(request_mode, mode)
        self.conversation.receive(Event(Kind.REQUEST_HEADERS, headers=named, modes=modes))
        asked = {"model": model, "messages": [{"role": "user", "content": content}]}
        body = json.dumps(asked).encode()
        self.conversation.receive(Event(Kind.REQUEST_BODY, body=body, end_of_stream=whole))
        assert isinstance(self.conversation.verdict, Decision)
        self.decision = self.conversation.verdict

    @property
    def computed(self) -> bool:
        """True if the prefill is finished."""
        return self.decision.lease.prefill is None

    @property
    def usage(self) -> Usage | None:
        response = self.conversation.response
        return None if response is None else response.usage

    @property
    def reads(self) -> bool:
        """True if the conversation keeps a part of the response."""
        response = self.conversation.response
        return response is not None and response._reader is not None

    @property
    def retried(self) -> bool:
        response = self.conversation.response
        return response is not None and response.retried

    def headed(self, served_by: str = "") -> Replies:
        """Send the response headers."""
        return self.conversation.receive(Event(Kind.RESPONSE_HEADERS, served_by=served_by))

    def answered(self, *parts: bytes, end: bool = False) -> list[Replies]:
        """Send parts of the response body; `end` marks the last one as the end."""
        ends = [*[False] * (len(parts) - 1), end]
        return [
            self.conversation.receive(Event(Kind.RESPONSE_BODY, body=part, end_of_stream=is_end))
            for part, is_end in zip(parts, ends, strict=True)
        ]


class TestFirstBytes:
    @MODES
    def test_finish_the_prefill(self, mode: BodyMode) -> None:
        stream = Gateway().request(mode)
        assert not stream.computed
        stream.answered(CHUNK)
        assert stream.computed

    def test_are_not_headers_or_empty_parts(self) -> None:
        stream = Gateway().request()
        stream.headed()
        stream.answered(b"")
        assert not stream.computed

    def test_of_an_error_finish_the_prefill_too(self) -> None:
        stream = Gateway().request()
        stream.answered(b'{"error": {"code": 400}}', end=True)
        assert stream.computed

    def test_are_not_the_opening_events_of_responses(self) -> None:
        stream = Gateway().request(path="/v1/responses")
        for kind in (b"created", b"in_progress"):
            stream.answered(b"event: response.%b\ndata: {}\n\n" % kind)
            assert not stream.computed
        stream.answered(b"event: response.output_item.added\ndata: {}\n\n")
        assert stream.computed

    def test_finish_the_prefill_on_the_endpoint_that_responded(self) -> None:
        gateway = Gateway()
        first, second = gateway.request(content="a" * 999), gateway.request(content="b" * 999)
        (other,) = set(TWO_ADDRESSES) - {first.decision.address}
        first.headed(other)
        first.answered(CHUNK)
        assert first.computed
        second.answered(CHUNK)
        assert second.computed
        assert not any(gateway.signals.backlog.tokens.values())

    def test_before_the_decision_are_ignored(self) -> None:
        conversation = Conversation(Gateway().router, Random(0))
        event = Event(Kind.RESPONSE_BODY, body=CHUNK, modes=Modes(), end_of_stream=True)
        assert conversation.receive(event) == (Proceed(Kind.RESPONSE_BODY),)
        conversation.close()
        assert conversation.response is None

    def test_without_a_prediction_are_ignored(self) -> None:
        stream = Gateway("PrefixHash").request()
        stream.answered(CHUNK, LAST)
        assert not stream.reads
        stream.answered(DONE, end=True)
        assert stream.usage is None


class TestUsage:
    @MODES
    def test_is_known_at_the_end_of_the_body(self, mode: BodyMode) -> None:
        stream = Gateway().request(mode)
        stream.answered(CHUNK, CHUNK, LAST, DONE)
        assert stream.usage is None
        assert stream.reads
        stream.answered(b"", end=True)
        assert stream.usage == Usage(400, 384)
        assert not stream.reads, "nothing more is kept of it"

    def test_is_known_at_the_end_of_the_stream(self) -> None:
        stream = Gateway().request()
        stream.answered(CHUNK, LAST)
        stream.conversation.close()
        assert stream.usage == Usage(400, 384)
        stream.conversation.close()
        assert stream.usage == Usage(400, 384)

    def test_is_read_from_a_body_in_one_part(self) -> None:
        stream = Gateway().request(BodyMode.BUFFERED)
        stream.answered(b'{"choices": [], "usage": {"prompt_tokens": 400}}', end=True)
        assert stream.usage == Usage(400, None)

    @MODES
    def test_is_not_read_after_the_end(self, mode: BodyMode) -> None:
        stream = Gateway().request(mode)
        stream.answered(CHUNK, LAST, end=True)
        stream.answered(TOLD % b"null", end=True)
        stream.conversation.close()
        assert stream.usage == Usage(400, 384)

    def test_is_none_if_the_body_has_none(self) -> None:
        stream = Gateway().request()
        stream.answered(CHUNK, DONE, end=True)
        assert stream.usage is None

    def test_is_none_without_a_body(self) -> None:
        stream = Gateway().request()
        stream.headed()
        assert not stream.reads
        stream.conversation.close()
        assert stream.usage is None

    def test_is_ignored_if_the_prompt_was_not_shown(self) -> None:
        stream = Gateway().request(path="/v1/embeddings")
        stream.answered(b'{"usage": {"prompt_tokens": 400}}', end=True)
        assert stream.usage is None

    def test_leaves_the_body_unchanged(self) -> None:
        stream = Gateway().request()
        parts = (CHUNK, LAST, DONE)
        assert stream.answered(*parts, end=True) == [
            (Chunk(Kind.RESPONSE_BODY, part, part is DONE),) for part in parts
        ]
        stream = Gateway().request(BodyMode.OTHER)
        assert stream.answered(*parts, end=True) == [(Proceed(Kind.RESPONSE_BODY),)] * 3


class TestRetry:
    def test_is_recorded_if_another_endpoint_responded(self) -> None:
        stream = Gateway().request()
        (other,) = set(TWO_ADDRESSES) - {stream.decision.address}
        assert not stream.retried
        stream.headed(other)
        assert stream.retried
        stream.answered(LAST, end=True)
        assert stream.usage == Usage(400, 384)

    def test_is_not_recorded_if_the_chosen_endpoint_responded(self) -> None:
        stream = Gateway().request()
        stream.headed(stream.decision.address)
        assert not stream.retried

    def test_lets_the_serving_endpoint_have_the_prompt(self) -> None:
        gateway = Gateway()
        stream = gateway.request()
        chosen = stream.decision.address
        (other,) = set(TWO_ADDRESSES) - {chosen}
        stream.headed(served_by=other)
        prefixes = gateway.signals.prefixes
        assert prefixes.size(other) == prefixes.size(chosen) > 0

    @pytest.mark.parametrize("shows_headers", [True, False])
    def test_keeps_the_prompt_only_while_a_retry_may_be_seen(self, shows_headers: bool) -> None:
        stream = Gateway().request(shows_headers=shows_headers)
        assert (stream.decision.lease.request is not None) == shows_headers
        stream.headed(served_by=stream.decision.address)
        assert stream.decision.lease.request is None


class TestTokenSizes:
    def learned(self, **how: Any) -> bool:
        """Return True if the response to this request changes the token size."""
        gateway = Gateway()
        stream = gateway.request(**how)
        stream.answered(LAST, end=True)
        assert stream.usage == Usage(400, 384)
        return gateway.bytes_per_token != BYTES_PER_TOKEN

    def test_are_learned_from_a_response(self) -> None:
        gateway = Gateway()
        for _ in range(500):
            stream = gateway.request(content="x" * 1194)
            stream.answered(LAST, end=True)
            stream.conversation.close()
        # The text is `user` and the content, each with a line end.
        assert gateway.bytes_per_token == pytest.approx(3.0, rel=1e-3)

    @pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.DUPLEX])
    def test_are_learned_under_any_name_of_the_model(self, mode: BodyMode) -> None:
        assert self.learned(request_mode=mode)
        assert self.learned(request_mode=mode, model="l")
        assert self.learned(request_mode=mode, model="sql")

    def test_are_not_learned_from_a_cut_prompt(self) -> None:
        assert not self.learned(whole=False)
        long = "x" * HEAD_LIMIT
        assert not self.learned(request_mode=BodyMode.DUPLEX, content=long)
        assert not self.learned(request_mode=BodyMode.DUPLEX, content=long, whole=False)

    def test_are_learned_after_a_retry_too(self) -> None:
        gateway = Gateway()
        stream = gateway.request()
        stream.headed("10.9.9.9:8000")
        stream.answered(LAST, end=True)
        assert gateway.bytes_per_token != BYTES_PER_TOKEN
