"""Limits on the CPU time and memory of header blocks, in decoded fields and bytes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hpack import Decoder, Encoder, HeaderTuple

from extproc.edge.http2 import Limits
from extproc.edge.http2.limits import FIELDS_PER_TOKEN
from tests.edge.http2 import wire
from tests.edge.http2.client import Http2Client

UPDATE = b"\x20"
INDEXED = b"\x90"  # accept-encoding: gzip, deflate


def headers(stream: int, block: bytes) -> bytes:
    return wire.frame(wire.HEADERS, wire.END_HEADERS, stream, block)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The blocks that reach the decoder."""
    found: list[bytes] = []
    decode = Decoder.decode

    def counting(self: Decoder, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        found.append(data)
        return decode(self, data, raw)

    monkeypatch.setattr(Decoder, "decode", counting)
    return found


def peer_with_a_table() -> Http2Client:
    """Return a client that has not acknowledged our SETTINGS, so its blocks may use a table."""
    client = Http2Client(greet=False)
    client.send(wire.PREFACE, wire.settings())
    client.received()
    return client


def test_block_may_begin_with_two_table_size_updates() -> None:
    client = peer_with_a_table()
    assert len(client.send(headers(1, UPDATE * 2 + wire.block()))) == 1


@pytest.mark.parametrize("number", [3, 15_000])
def test_more_table_size_updates_end_the_connection_before_decoding(
    number: int, decoded: list[bytes]
) -> None:
    client = peer_with_a_table()
    client.send(headers(1, UPDATE * number + wire.block()))
    assert client.fault_code() == wire.COMPRESSION_ERROR
    assert decoded == []


def test_table_size_update_after_a_field_ends_the_connection() -> None:
    client = peer_with_a_table()
    client.send(headers(1, wire.block() + UPDATE))
    assert client.fault_code() == wire.COMPRESSION_ERROR


@pytest.mark.parametrize("greet", [True, False], ids=["with settings known", "with a table"])
def test_too_many_fields_end_the_connection_before_decoding(
    greet: bool, decoded: list[bytes]
) -> None:
    client = Http2Client() if greet else peer_with_a_table()
    decoded.clear()
    client.send(headers(3, wire.block() + INDEXED * 1_490))
    assert client.fault_code() == wire.ENHANCE_YOUR_CALM
    assert decoded == []


def test_too_many_trailers_end_the_connection_before_decoding(
    decoded: list[bytes],
) -> None:
    client = Http2Client()
    client.open(3)
    decoded.clear()
    client.send(wire.frame(wire.HEADERS, wire.END_HEADERS | 1, 3, INDEXED * 1_490))
    assert client.fault_code() == wire.ENHANCE_YOUR_CALM
    assert decoded == []


def test_block_with_the_allowed_number_of_fields_is_served() -> None:
    client = Http2Client(Limits(header_fields=20))
    fields = [*wire.REQUEST, *((b"x", b"y"),) * (20 - len(wire.REQUEST))]
    assert len(client.send(wire.headers(3, fields))) == 1
    client.send(wire.headers(5, [*fields, (b"x", b"z")]))
    assert client.fault_code() == wire.ENHANCE_YOUR_CALM


def test_references_to_a_long_field_cannot_multiply_its_size() -> None:
    client = peer_with_a_table()
    encoder = Encoder()
    long = [*wire.REQUEST, (b"x", b"y" * 3_000)]
    assert len(client.send(headers(1, encoder.encode(long)))) == 1
    twice = encoder.encode([*long, (b"x", b"y" * 3_000)])
    assert len(twice) < 20
    assert len(client.send(headers(3, twice))) == 1
    many = encoder.encode([*long, *((b"x", b"y" * 3_000),) * 4])
    assert client.send(headers(5, many))[-1].stream == 3
    assert client.fault_code() == wire.ENHANCE_YOUR_CALM


def test_blocks_with_many_new_fields_take_tokens() -> None:
    tokens, greeting = 50, 2
    client = Http2Client(Limits(budget=tokens + greeting, budget_per_second=0))
    more = [(b"x-%d" % i, b"y") for i in range(FIELDS_PER_TOKEN - len(wire.REQUEST) - 2)]
    for i in range(200):
        client.send(wire.headers(2 * i + 3, [*wire.REQUEST, *more, (b"x", b"%d" % i)]))
    assert not client.connection.closed
    for i in range(200, 201 + tokens):
        assert not client.connection.closed
        again = [*wire.REQUEST, *more, (b"z", b"z"), (b"x", b"%d" % i)]
        client.send(wire.headers(2 * i + 3, again))
    assert client.fault_code() == wire.ENHANCE_YOUR_CALM


def test_cached_block_takes_no_token() -> None:
    client = Http2Client(Limits(budget=10, budget_per_second=0))
    fields = [*wire.REQUEST, *((b"x-%d" % i, b"y") for i in range(60))]
    for i in range(500):
        client.send(wire.headers(2 * i + 3, fields))
    assert not client.connection.closed
