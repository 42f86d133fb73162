"""Header blocks of both sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hpack import Decoder, Encoder, HeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from extproc.edge.http2 import LIMITS, Limits, Opened, encode_headers
from extproc.edge.http2.decoding import HeaderDecoder
from extproc.edge.http2.errors import ConnectionFault
from extproc.edge.http2.limits import Budget
from tests.core.builders import brief, thorough
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, OK, Http2Client

METHOD, SCHEME, PATH, AUTHORITY = wire.REQUEST[:4]


def header_decoder(limits: Limits = LIMITS) -> HeaderDecoder:
    return HeaderDecoder(limits, Budget(limits.budget, limits.budget_per_second))


def opened(client: Http2Client, stream: int, fields: wire.Fields) -> Mapping[bytes, bytes] | None:
    """Return the headers of the Opened event, or None if the request was reset as malformed."""
    events = client.send(wire.headers(stream, fields))
    if events:
        (event,) = events
        assert isinstance(event, Opened)
        return event.headers
    assert wire.resets(client.received()) == [(stream, wire.PROTOCOL_ERROR)]
    assert not client.connection.closed
    return None


class TestRequestHeaders:
    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param([METHOD, SCHEME, PATH], id="without authority"),
            pytest.param([METHOD, SCHEME, PATH, (b"host", b"a")], id="with a host instead"),
            pytest.param([*wire.REQUEST, (b"host", AUTHORITY[1])], id="with the same host"),
            pytest.param([*wire.REQUEST, (b"x", b"")], id="empty value"),
            pytest.param([*wire.REQUEST, (b"x", b"\xff \x80")], id="value of any bytes"),
            pytest.param([(b":method", b"CONNECT"), AUTHORITY], id="CONNECT"),
        ],
    )
    def test_well_formed_ones_open_a_stream(self, fields: wire.Fields) -> None:
        assert opened(Http2Client(), 3, fields) == dict(fields)

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param([], id="nothing"),
            pytest.param([SCHEME, PATH, AUTHORITY], id="no method"),
            pytest.param([METHOD, PATH, AUTHORITY], id="no scheme"),
            pytest.param([METHOD, SCHEME, AUTHORITY], id="no path"),
            pytest.param([METHOD, SCHEME, AUTHORITY, (b":path", b"")], id="empty path"),
            pytest.param([*wire.REQUEST[:4], METHOD], id="method twice"),
            pytest.param([METHOD, SCHEME, (b"x", b"y"), PATH], id="pseudo-header after others"),
            pytest.param([METHOD, SCHEME, PATH, (b":status", b"200")], id="an answer's"),
            pytest.param([METHOD, SCHEME, PATH, (b":", b"")], id="no pseudo-header's name"),
            pytest.param([*wire.REQUEST, (b"X-Upper", b"y")], id="upper case"),
            pytest.param([*wire.REQUEST, (b"", b"y")], id="no name"),
            pytest.param([*wire.REQUEST, (b"a b", b"y")], id="blank in a name"),
            pytest.param([*wire.REQUEST, (b"a:b", b"y")], id="colon in a name"),
            pytest.param([*wire.REQUEST, (b"a\xff", b"y")], id="a name not ASCII"),
            pytest.param([*wire.REQUEST, (b"x", b" y")], id="blank before a value"),
            pytest.param([*wire.REQUEST, (b"x", b"y\t")], id="tab after a value"),
            pytest.param([*wire.REQUEST, (b"x", b"y\nz: 1")], id="line feed"),
            pytest.param([*wire.REQUEST, (b"x", b"y\r")], id="carriage return"),
            pytest.param([*wire.REQUEST, (b"x", b"\0")], id="null"),
            pytest.param([METHOD, SCHEME, (b":path", b"/ ")], id="blank after the path"),
            pytest.param([*wire.REQUEST, (b"connection", b"close")], id="of a connection"),
            pytest.param([*wire.REQUEST, (b"transfer-encoding", b"chunked")], id="chunked"),
            pytest.param([*wire.REQUEST, (b"upgrade", b"h2c")], id="upgrade"),
            pytest.param([*wire.REQUEST[:4], (b"te", b"gzip")], id="te other than trailers"),
            pytest.param([*wire.REQUEST, (b"host", b"other")], id="another host"),
            pytest.param([(b":method", b"CONNECT"), AUTHORITY, PATH], id="CONNECT with a path"),
            pytest.param([(b":method", b"CONNECT")], id="CONNECT to nowhere"),
        ],
    )
    def test_malformed_ones_are_reset_and_the_body_ignored(self, fields: wire.Fields) -> None:
        client = Http2Client()
        assert opened(client, 3, fields) is None
        assert client.send(wire.data(3, b"body"), wire.data(3, b"", end=True)) == []
        assert client.received() == []

    def test_values_of_a_repeated_name_are_joined(self) -> None:
        fields = [(b"a", b"1"), (b"cookie", b"c=1"), (b"a", b"2"), (b"cookie", b"d=2")]
        headers = opened(Http2Client(), 3, [*wire.REQUEST, *fields])
        assert headers is not None
        assert (headers[b"a"], headers[b"cookie"]) == (b"1, 2", b"c=1; d=2")

    def test_are_immutable(self) -> None:
        headers = opened(Http2Client(), 3, wire.REQUEST)
        with pytest.raises(TypeError):
            headers[b"x"] = b"y"  # type: ignore[index]


class TestHeaderBlock:
    def test_garbled_block_ends_the_connection(self) -> None:
        client = Http2Client()
        client.send(wire.frame(wire.HEADERS, wire.END_HEADERS, 3, b"\xff\xff\xff"))
        assert client.fault_code() == wire.COMPRESSION_ERROR

    def test_too_long_block_ends_the_connection(self) -> None:
        client = Http2Client(Limits(header_block=40_000))
        client.send(wire.frame(wire.HEADERS, 0, 3, bytes(16_000)))
        client.send(wire.frame(wire.CONTINUATION, 0, 3, bytes(16_000)))
        assert not client.connection.closed
        client.send(wire.frame(wire.CONTINUATION, 0, 3, bytes(16_000)))
        assert client.fault_code() == wire.ENHANCE_YOUR_CALM

    def test_too_many_empty_frames_end_the_connection(self) -> None:
        client = Http2Client()
        empty = wire.frame(wire.CONTINUATION, 0, 3)
        client.send(wire.frame(wire.HEADERS, 0, 3), *[empty] * 16)
        assert not client.connection.closed
        client.send(empty)
        assert client.fault_code() == wire.ENHANCE_YOUR_CALM

    def test_too_long_block_in_one_frame_ends_the_connection(self) -> None:
        client = Http2Client(Limits(header_block=20_000, frame_size=30_000))
        client.send(wire.headers(3, [*wire.REQUEST, (b"x", bytes(14_000))]))
        assert client.fault_code() == wire.ENHANCE_YOUR_CALM

    def test_block_that_expands_too_much_ends_the_connection(self) -> None:
        client = Http2Client()
        client.send(wire.frame(wire.HEADERS, wire.END_HEADERS, 3, b"\x82" * 10_000))
        assert client.fault_code() == wire.ENHANCE_YOUR_CALM

    def test_block_of_a_refused_stream_still_changes_the_table(self) -> None:
        client = Http2Client(Limits(concurrent_streams=1), greet=False)
        encoder = Encoder()
        client.send(wire.PREFACE, wire.settings())
        for stream, fields in ((1, wire.REQUEST), (3, [*wire.REQUEST, (b"x", b"new")])):
            block = encoder.encode(fields)
            client.send(wire.frame(wire.HEADERS, wire.END_HEADERS, stream, block))
        client.connection.sender.end(1, DONE)
        block = encoder.encode([*wire.REQUEST, (b"x", b"new")])
        (event,) = client.send(wire.frame(wire.HEADERS, wire.END_HEADERS, 5, block))
        assert isinstance(event, Opened)
        assert event.headers[b"x"] == b"new"


class TestDynamicTable:
    """Our SETTINGS set its size to 0, but a client may use it until it has read them."""

    def test_may_be_used_until_our_settings_are_acknowledged(self) -> None:
        client = Http2Client(greet=False)
        encoder = Encoder()
        client.send(wire.PREFACE, wire.settings())
        for stream in (1, 3):
            block = encoder.encode(wire.REQUEST)
            (event,) = client.send(wire.frame(wire.HEADERS, wire.END_HEADERS, stream, block))
            assert isinstance(event, Opened)
        assert len(block) < 10
        encoder.header_table_size = 0
        client.send(wire.SETTINGS_ACK)
        for stream in (5, 7):
            block = encoder.encode(wire.REQUEST)
            (event,) = client.send(wire.frame(wire.HEADERS, wire.END_HEADERS, stream, block))
            assert isinstance(event, Opened)
            assert event.headers == dict(wire.REQUEST)

    def test_first_block_after_that_must_set_its_size_to_zero(self) -> None:
        client = Http2Client(greet=False)
        client.send(wire.PREFACE, wire.settings(), wire.SETTINGS_ACK, wire.headers(1))
        assert client.fault_code() == wire.COMPRESSION_ERROR

    def test_cannot_be_used_afterwards(self) -> None:
        client = Http2Client()
        client.send(wire.frame(wire.HEADERS, wire.END_HEADERS, 3, b"\xbe"))
        assert client.fault_code() == wire.COMPRESSION_ERROR


class TestBlockCache:
    def test_decodes_repeated_blocks_once(self) -> None:
        client = Http2Client()
        first, second = client.send(wire.headers(3), wire.headers(5))
        assert isinstance(first, Opened)
        assert isinstance(second, Opened)
        assert first.headers is second.headers

    def test_is_empty_while_there_is_a_dynamic_table(self) -> None:
        decoder = header_decoder()
        decoder.request(wire.block())
        assert decoder.requests == {}

    def test_keeps_few_and_short_blocks(self) -> None:
        decoder = header_decoder()
        decoder.acknowledged()
        decoder.request(b"\x20" + wire.block())
        assert decoder.requests == {}
        decoder.request(wire.block([*wire.REQUEST, (b"x", bytes(5_000))]))
        assert decoder.requests == {}
        for i in range(1_000):
            decoder.request(wire.block([*wire.REQUEST, (b"x", b"%d" % i)]))
            assert len(decoder.requests) <= 64


class TestFieldCache:
    def test_decodes_only_new_fields(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decoder = header_decoder()
        decoder.acknowledged()
        decoder.request(b"\x20" + wire.block())
        decoder.request(wire.block([*wire.REQUEST, (b"traceparent", b"00-1")]))
        decoded: list[bytes] = []
        decode = Decoder.decode

        def counting(self: Decoder, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
            decoded.append(data)
            return decode(self, data, raw)

        monkeypatch.setattr(Decoder, "decode", counting)
        headers = decoder.request(wire.block([*wire.REQUEST, (b"traceparent", b"00-2")]))
        assert headers == {**dict(wire.REQUEST), b"traceparent": b"00-2"}
        assert len(decoded) == 1
        assert len(decoded[0]) < 20

    def test_applies_the_limit_of_the_header_list(self) -> None:
        decoder = header_decoder(Limits(header_list=300))
        decoder.acknowledged()
        decoder.trailers(b"\x20")
        for _ in range(2):
            with pytest.raises(ConnectionFault):
                decoder.request(wire.block([*wire.REQUEST, *((b"x", b"1"),) * 10]))

    @brief
    @given(st.binary(max_size=60))
    def test_refuses_the_same_blocks_as_a_new_decoder(self, block: bytes) -> None:
        def outcome(*earlier: bytes) -> object:
            decoder = header_decoder()
            decoder.acknowledged()
            decoder.trailers(b"\x20")
            for one in earlier:
                decoder.request(one)
            try:
                return decoder.request(block)
            except ConnectionFault as fault:
                return fault.code

        assert outcome(wire.block(), wire.block([*wire.REQUEST, (b"a", b"b")])) == outcome()


names = st.sampled_from([b"a", b"te", b"x-long-name", b":status", b":method", b"cookie", b"X"])
values = st.sampled_from([b"", b"trailers", b"200", b"POST", b"x" * 300]) | st.binary(max_size=9)
fields = st.lists(st.tuples(names, values), max_size=6).map(lambda more: [*wire.REQUEST, *more])


@thorough
@given(st.lists(fields, min_size=1, max_size=4), st.data())
def test_cached_requests_equal_those_of_a_new_decoder(
    requests: list[list[tuple[bytes, bytes]]], draw: st.DataObject
) -> None:
    encoder = Encoder()
    encoder.header_table_size = 0
    decoder = header_decoder()
    decoder.acknowledged()
    for _ in range(8):
        block = encoder.encode(draw.draw(st.sampled_from(requests)))
        fresh = header_decoder()
        fresh.acknowledged()
        fresh.trailers(b"\x20")
        expected = fresh.request(block)
        kept = decoder.requests.get(block)
        assert kept is None or kept == expected
        assert decoder.request(block) == expected


@brief
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=200), st.binary(max_size=200))))
def test_encoded_blocks_need_no_table_and_decode_to_their_fields(
    pairs: list[tuple[bytes, bytes]],
) -> None:
    decoder = Decoder()
    decoder.max_allowed_table_size = 0
    decoder.header_table_size = 0
    assert list(decoder.decode(encode_headers(pairs), raw=True)) == pairs


class TestEncodedBlocks:
    def test_use_the_static_table(self) -> None:
        assert encode_headers([(b":status", b"200")]) == b"\x88"
        assert encode_headers([(b"content-type", b"a")]) == b"\x0f\x10\x01a"

    def test_only_the_first_one_sets_the_table_size(self) -> None:
        client = Http2Client(greet=False)
        client.send(wire.PREFACE, wire.settings([(1, 0)]), wire.headers(1), wire.headers(3))
        client.received()
        client.connection.sender.start_response(1, OK)
        client.connection.sender.start_response(3, OK)
        first, second = client.received()
        assert first.data == b"\x20" + OK  # type: ignore[attr-defined]
        assert second.data == OK  # type: ignore[attr-defined]
