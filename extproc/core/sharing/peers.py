"""The other sidecars: their requests in flight, as far as their batches reported them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Lease
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.sharing.batch import SENT_AGO, Batch, Held, Sent, unpacked

SILENT_SECONDS = 3.0
"""Seconds without a batch after which a peer's requests no longer count. Peers report what they
hold every second."""

MOST_PEERS = 256
"""The most sidecars that are counted."""

MOST_REQUESTS = 100_000
"""The most requests in flight of one sidecar that are counted."""


class Peer:
    """One other sidecar and its requests in flight, by number."""

    def __init__(self, heard_at: float) -> None:
        self.heard_at = heard_at
        self.leases: dict[int, Lease] = {}

    def release_all(self) -> None:
        """Release the leases of all its requests."""
        for lease in self.leases.values():
            lease.release()
        self.leases.clear()


class PeerState(NamedTuple):
    """The state of one other sidecar."""

    id: str
    inflight: int
    age_seconds: float
    """Seconds since its last batch was written."""


class Peers:
    """Applies the batches of other sidecars to the fleet's state; `clock` returns seconds.

    Any program that can write to the shared state can send batches. So no batch adds an endpoint,
    and the number of requests is bounded.
    """

    def __init__(self, origin: str, fleet: Fleet, clock: Callable[[], float]) -> None:
        self._origin = origin
        self._fleet = fleet
        self._clock = clock
        self._peers: dict[str, Peer] = {}

    def receive(self, batch: Batch, age: float) -> None:
        """Apply a batch that was written `age` seconds ago. Raises IndexError for a bad name."""
        if batch.origin == self._origin:
            return
        if batch.is_last:
            self._store(batch)
            self._forget(batch.origin)
            return
        written_at = self._clock() - age
        peer = self._peer(batch.origin, written_at)
        if peer is None or age > SILENT_SECONDS:
            self._store(batch)
        else:
            self._apply(peer, batch, written_at)
        self._apply_ejections(batch, age)
        for model, size in batch.token_sizes.items():
            if model in self._fleet.models:
                self._fleet.signals.token_sizes.adopt(model, size)

    def expire(self) -> None:
        """Forget the peers that are silent."""
        oldest = self._clock() - SILENT_SECONDS
        for origin in [origin for origin, peer in self._peers.items() if peer.heard_at < oldest]:
            self._forget(origin)

    def is_first(self) -> bool:
        """Return True if no peer's id is less than this sidecar's."""
        return all(self._origin < origin for origin in self._peers)

    def states(self) -> list[PeerState]:
        """Return the state of each peer, by id."""
        now = self._clock()
        return [
            PeerState(origin, len(peer.leases), max(0.0, now - peer.heard_at))
            for origin, peer in sorted(self._peers.items())
        ]

    def __len__(self) -> int:
        """Return the number of peers."""
        return len(self._peers)

    def _peer(self, origin: str, written_at: float) -> Peer | None:
        """Return the peer with this id; None if it has been silent or there are too many."""
        peer = self._peers.get(origin)
        if peer is None:
            if len(self._peers) >= MOST_PEERS or self._clock() - written_at > SILENT_SECONDS:
                return None
            peer = self._peers[origin] = Peer(written_at)
        peer.heard_at = max(peer.heard_at, written_at)
        return peer

    def _forget(self, origin: str) -> None:
        peer = self._peers.pop(origin, None)
        if peer is not None:
            peer.release_all()

    def _store(self, batch: Batch) -> None:
        """Record only the prompts of an old or last batch: its requests may have ended."""
        for sent in batch.sent:
            address = batch.names[sent[2]]
            if address in self._fleet.endpoints:
                self._fleet.store(address, _request(sent, batch.names))

    def _apply(self, peer: Peer, batch: Batch, written_at: float) -> None:
        names, leases = batch.names, peer.leases
        endpoints, receive = self._fleet.endpoints, self._fleet.receive
        self._follow(peer, batch)  # a request often continues the session of one that has ended
        for sent in batch.sent:
            number = sent[0]
            endpoint = endpoints.get(names[sent[2]])
            if endpoint and number not in leases and len(leases) < MOST_REQUESTS:
                request = _request(sent, names)
                leases[number] = receive(
                    names[sent[1]], endpoint, request, written_at - sent[SENT_AGO]
                )
        self._follow(peer, batch)
        if batch.held is not None:
            self._correct(peer, batch.held, names, written_at)

    def _follow(self, peer: Peer, batch: Batch) -> None:
        """Apply the later course of the requests that are known."""
        leases = peer.leases
        for number, address in batch.moved:
            endpoint = self._fleet.endpoints.get(batch.names[address])
            if endpoint and number in leases:
                leases[number].move(endpoint)
        for number in batch.began:
            lease = leases.get(number)
            if lease is not None:
                lease.finish_prefill()
        for number in batch.ended:
            lease = leases.pop(number, None)
            if lease is not None:
                lease.release()

    def _correct(
        self, peer: Peer, held: Sequence[Held], names: Sequence[str], written_at: float
    ) -> None:
        """Let the peer's leases be those that it holds."""
        present = {one[0] for one in held}
        for number in [number for number in peer.leases if number not in present]:
            peer.leases.pop(number).release()
        for one in held:
            endpoint = self._fleet.endpoints.get(names[one[2]])
            lease = peer.leases.get(one[0])
            if endpoint is None or len(peer.leases) >= MOST_REQUESTS:
                continue
            if lease is None:
                peer.leases[one[0]] = self._hold(one, names, endpoint, written_at)
                continue
            if lease.endpoint.address != endpoint.address:
                lease.move(endpoint)
            _correct_prefill(lease, to_compute=one[4])

    def _hold(
        self, held: Held, names: Sequence[str], endpoint: Endpoint, written_at: float
    ) -> Lease:
        """Record a request whose beginning was not reported."""
        _, model, _, tokens, to_compute, seconds = held
        request = SentRequest(tokens=None if tokens < 0 else tokens, to_compute=to_compute)
        lease = self._fleet.receive(names[model], endpoint, request, written_at - seconds)
        _correct_prefill(lease, to_compute)
        return lease

    def _apply_ejections(self, batch: Batch, age: float) -> None:
        ejection, names = self._fleet.ejection, batch.names
        # Returns come first, because at most half of a model's endpoints can be ejected.
        for address in batch.returned:
            ejection.adopt_return(names[address], age)
        for address, seconds in batch.ejected:
            ejection.adopt(names[address], seconds, age)
        for address in batch.tried if age <= SILENT_SECONDS else ():
            ejection.adopt_trial(names[address])


def _correct_prefill(lease: Lease, to_compute: float) -> None:
    """Remove the prompt from the backlog if its sidecar reports nothing to compute."""
    if not to_compute and lease.prefill is not None:
        lease.prefill.cancel()
        lease.prefill = None


def _request(sent: Sent, names: Sequence[str]) -> SentRequest:
    _, _, _, adapter, tokens, to_compute, prefix, _, chains, turn = sent
    blocks, known = [unpacked(chain) for chain in chains], None if tokens < 0 else tokens
    return SentRequest(names[adapter], blocks, prefix, known, to_compute, turn)
