"""A small DNS server on loopback, over UDP and TCP, and a clock for its clients."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from typing import Literal, cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from extproc.adapters.dns.lookup import NameServer

Records = dict[tuple[str, str], tuple[int, list[str]]]
"""TTL and data by name (with the final dot) and type."""


class DnsServer:
    """Responds from `records`; a name without any record does not exist."""

    def __init__(self) -> None:
        self.records: Records = {}
        self.mode: Literal["answer", "silent", "servfail", "truncate"] = "answer"
        """With `truncate`, complete responses come over TCP only."""
        self.queries: list[tuple[str, str]] = []
        self.address = NameServer("127.0.0.1", 0)
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None

    def asked(self, name: str, kind: str = "A") -> int:
        """Return the number of queries for these records."""
        return self.queries.count((name, kind))

    async def start(self) -> DnsServer:
        """Listen on the last port again, or on one that is free for UDP and TCP."""
        self._tcp = await asyncio.start_server(self._serve_tcp, "127.0.0.1", self.address.port)
        port: int = self._tcp.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        self._udp, _ = await loop.create_datagram_endpoint(
            lambda: _Udp(self), local_addr=("127.0.0.1", port)
        )
        self.address = NameServer("127.0.0.1", port)
        return self

    async def stop(self) -> None:
        """Close the port."""
        if self._udp is not None and self._tcp is not None:
            self._udp.close()
            self._tcp.close()
            await self._tcp.wait_closed()
            self._udp = self._tcp = None

    def answer(self, wire: bytes, *, tcp: bool) -> bytes | None:
        """Return the response to a query; None if the query gets none."""
        query = dns.message.from_wire(wire)
        (question,) = query.question
        name, kind = question.name.to_text(), dns.rdatatype.to_text(question.rdtype)
        self.queries.append((name, kind))
        if self.mode == "silent":
            return None
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        if self.mode == "servfail":
            response.set_rcode(dns.rcode.SERVFAIL)
        elif self.mode == "truncate" and not tcp:
            response.flags |= dns.flags.TC
        else:
            self._fill(response, name, kind)
        return response.to_wire()

    def _fill(self, response: dns.message.Message, name: str, kind: str) -> None:
        while (name, "CNAME") in self.records:
            ttl, (target,) = self.records[name, "CNAME"]
            response.answer.append(dns.rrset.from_text(name, ttl, "IN", "CNAME", target))
            name = target
        ttl, data = self.records.get((name, kind), (0, []))
        if data:
            response.answer.append(dns.rrset.from_text(name, ttl, "IN", kind, *data))
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2))
        response = self.answer(await reader.readexactly(length), tcp=True)
        if response is not None:
            writer.write(len(response).to_bytes(2) + response)
            await writer.drain()
        writer.close()


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        response = self._server.answer(data, tcp=False)
        if response is not None and self._transport is not None:
            self._transport.sendto(response, addr)


class FakeTime:
    """A clock that only a test advances, and sleeps by this clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        """Durations of all sleeps, in seconds."""
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        done = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, len(self.sleeps), done))
        await done

    async def advance(self, seconds: float) -> None:
        """Advance the clock; wake the sleeps that end by then, in order, and run their tasks."""
        until = self.now + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            self.now, _, done = heapq.heappop(self._sleepers)
            if not done.done():
                done.set_result(None)
                await settle()
        self.now = until


async def settle() -> None:
    """Run all tasks that wait only for each other."""
    for _ in range(20):
        await asyncio.sleep(0)


def a(records: Mapping[str, list[str]], ttl: int = 60) -> Records:
    """Return IPv4 records by name."""
    return {(name, "A"): (ttl, data) for name, data in records.items()}
