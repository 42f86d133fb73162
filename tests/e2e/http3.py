"""A client that sends one request over HTTP/3."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent

from tests.extent import PATIENCE


@dataclass
class Http3Reply:
    status: int = 0
    body: bytes = b""
    done: asyncio.Event = field(default_factory=asyncio.Event)


class _Client(QuicConnectionProtocol):
    reply: Http3Reply
    http: H3Connection

    def quic_event_received(self, event: QuicEvent) -> None:
        for one in self.http.handle_event(event):
            if isinstance(one, HeadersReceived):
                self.reply.status = int(dict(one.headers)[b":status"])
            if isinstance(one, DataReceived):
                self.reply.body += one.data
            if isinstance(one, HeadersReceived | DataReceived) and one.stream_ended:
                self.reply.done.set()


async def http3(
    port: int, ca: Path, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> Http3Reply:
    """Send a request to `localhost` and return the whole response."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN)
    configuration.load_verify_locations(str(ca))
    async with connect(
        "localhost", port, configuration=configuration, create_protocol=_protocol
    ) as client:
        assert isinstance(client, _Client)
        stream = client._quic.get_next_available_stream_id()
        fields = {":method": method, ":scheme": "https", ":authority": "localhost", ":path": path}
        pairs = [(k.encode(), v.encode()) for k, v in {**fields, **headers}.items()]
        client.http.send_headers(stream, pairs, end_stream=not body)
        if body:
            client.http.send_data(stream, body, end_stream=True)
        client.transmit()
        await asyncio.wait_for(client.reply.done.wait(), PATIENCE)
        return client.reply


def _protocol(*arguments: object, **options: object) -> _Client:
    client = _Client(*arguments, **options)  # type: ignore[arg-type]
    client.http, client.reply = H3Connection(client._quic), Http3Reply()
    return client
