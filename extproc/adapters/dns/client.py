"""DNS by dnspython, which returns the TTL, follows CNAMEs, and retries over TCP if truncated."""

from __future__ import annotations

from pathlib import Path

from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.resolver import NXDOMAIN, Answer, NoAnswer, NoNameservers, NoResolverConfiguration

from extproc.adapters.dns.lookup import NameServer, NoAddresses, Resolved, Unanswered

_TRY_SECONDS = 1.0
"""Limit of one query to one server. The library begins with the first server for each search
domain, so a dead first server of two must leave time for the others within LOOKUP_SECONDS."""

_LIFETIME_SECONDS = 60.0
"""The caller has a limit of its own; this one only has to be longer."""


async def ask(host: str, server: NameServer | None, configuration: Path) -> Resolved:
    """Look up the IPv4 addresses of a name, or if it has none, its IPv6 addresses.

    A server with both kinds is one endpoint: it has one cache and one load. Raises NoAddresses,
    Unanswered.
    """
    try:
        resolver = _resolver(server, configuration)
        try:
            return _resolved(await resolver.resolve(host, "A", search=True))
        except NoAnswer:
            return _resolved(await resolver.resolve(host, "AAAA", search=True))
    except NXDOMAIN:
        raise NoAddresses("the name does not exist") from None
    except NoAnswer:
        raise NoAddresses("the name has no addresses") from None
    except NoResolverConfiguration:
        raise Unanswered(f"{configuration} names no name server") from None
    except NoNameservers as error:
        raise Unanswered(_refusals(error)) from None
    except (DNSException, OSError) as error:
        raise Unanswered(f"DNS failed: {type(error).__name__}") from None


def _resolver(server: NameServer | None, configuration: Path) -> Resolver:
    """Read the configuration each time: it changes while the sidecar runs."""
    try:
        resolver = Resolver(filename=str(configuration))
    except NoResolverConfiguration:
        if server is None:
            raise
        resolver = Resolver(configure=False)
    if server is not None:
        resolver.nameservers, resolver.port = [server.ip], server.port
    resolver.timeout, resolver.lifetime = _TRY_SECONDS, _LIFETIME_SECONDS
    return resolver


def _resolved(answer: Answer) -> Resolved:
    addresses = tuple(sorted(record.address for record in answer))
    return Resolved(addresses, float(answer.chaining_result.minimum_ttl))


def _refusals(error: NoNameservers) -> str:
    """Return each server with its last error, without parts that differ between attempts."""
    last = {
        server.removeprefix("Do53:").removesuffix("@53"): reason
        if isinstance(reason, str)
        else type(reason).__name__
        for server, _, _, reason, _ in error.kwargs["errors"]
    }
    failures = ", ".join(f"{server} {reason}" for server, reason in sorted(last.items()))
    return f"every name server failed: {failures}" if failures else "there is no name server"
