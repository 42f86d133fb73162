from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from extproc.adapters.discovery.discovery import SETTLE_SECONDS
from extproc.adapters.dns.lookup import NoAddresses, Resolved, Unanswered
from extproc.adapters.dns.resolver import HOSTS_SECONDS, LOOKUP_SECONDS, Resolver
from tests.adapters.dns.server import DnsServer, a


@pytest.fixture
def resolver(server: DnsServer, tmp_path: Path) -> Resolver:
    (tmp_path / "hosts").write_text("10.9.9.9 listed\n")
    (tmp_path / "resolv.conf").write_text("search apps.test test\nnameserver 192.0.2.1\n")
    return Resolver(
        server.address, hosts=tmp_path / "hosts", configuration=tmp_path / "resolv.conf"
    )


async def test_name_has_all_ipv4_addresses_and_their_ttl(
    server: DnsServer, resolver: Resolver
) -> None:
    server.records = a({"vllm.test.": ["10.0.0.2", "10.0.0.1"]}, ttl=17)
    assert await resolver.resolve("vllm.test.") == Resolved(("10.0.0.1", "10.0.0.2"), 17)


async def test_ipv6_is_used_without_ipv4(server: DnsServer, resolver: Resolver) -> None:
    """A server with both kinds is one endpoint: it has one cache and one load."""
    six = {("six.test.", "AAAA"): (7, ["fd00::1"]), ("both.test.", "AAAA"): (7, ["fd00::2"])}
    server.records = six | a({"both.test.": ["10.0.0.1"]})
    assert await resolver.resolve("six.test.") == Resolved(("fd00::1",), 7)
    assert (await resolver.resolve("both.test.")).addresses == ("10.0.0.1",)
    assert server.asked("both.test.", "AAAA") == 0


async def test_shortest_ttl_of_a_chain_of_aliases_counts(
    server: DnsServer, resolver: Resolver
) -> None:
    alias = {("www.test.", "CNAME"): (5, ["vllm.test."])}
    server.records = alias | a({"vllm.test.": ["10.0.0.1"]}, ttl=300)
    assert await resolver.resolve("www.test.") == Resolved(("10.0.0.1",), 5)


async def test_search_domains_of_the_machine_are_tried(
    server: DnsServer, resolver: Resolver
) -> None:
    server.records = a({"vllm.test.": ["10.0.0.1"]})
    assert (await resolver.resolve("vllm")).addresses == ("10.0.0.1",)
    assert [name for name, _ in server.queries] == ["vllm.apps.test.", "vllm.test."]


async def test_hosts_file_comes_before_dns(server: DnsServer, resolver: Resolver) -> None:
    assert await resolver.resolve("listed") == Resolved(("10.9.9.9",), HOSTS_SECONDS)
    assert server.queries == []


async def test_truncated_response_is_repeated_over_tcp(
    server: DnsServer, resolver: Resolver
) -> None:
    addresses = [f"10.0.{i // 250}.{i % 250}" for i in range(500)]
    server.records, server.mode = a({"many.test.": addresses}), "truncate"
    assert set((await resolver.resolve("many.test.")).addresses) == set(addresses)


async def test_unknown_name_differs_from_one_without_addresses(
    server: DnsServer, resolver: Resolver
) -> None:
    server.records = {("text.test.", "TXT"): (60, ["hello"])}
    with pytest.raises(NoAddresses, match=r"^the name does not exist$"):
        await resolver.resolve("nowhere.test.")
    with pytest.raises(NoAddresses, match=r"^the name has no addresses$"):
        await resolver.resolve("text.test.")


class TestLookupWithoutUsableResponse:
    async def test_ends_at_its_limit(self, server: DnsServer, tmp_path: Path) -> None:
        server.mode = "silent"
        with pytest.raises(Unanswered, match=r"^no response from DNS within 0\.3 s$"):
            await Resolver(server.address, hosts=tmp_path / "h", seconds=0.3).resolve("x.test.")

    async def test_ends_if_no_server_listens(self, server: DnsServer, tmp_path: Path) -> None:
        await server.stop()
        with pytest.raises(Unanswered):
            await Resolver(server.address, hosts=tmp_path / "h", seconds=0.3).resolve("x.test.")

    async def test_names_a_server_that_refuses(self, server: DnsServer, resolver: Resolver) -> None:
        server.mode = "servfail"
        with pytest.raises(Unanswered) as refused:
            await resolver.resolve("x.test.")
        assert "every name server failed: " in str(refused.value)
        assert "127.0.0.1" in str(refused.value)
        assert str(refused.value).endswith("SERVFAIL")

    async def test_reports_that_the_machine_has_no_name_server(self, tmp_path: Path) -> None:
        missing = tmp_path / "resolv.conf"
        with pytest.raises(Unanswered, match="names no name server"):
            await Resolver(configuration=missing, hosts=tmp_path / "hosts").resolve("x.test.")

    def test_takes_less_time_than_a_new_document_waits(self) -> None:
        assert LOOKUP_SECONDS < SETTLE_SECONDS


async def test_given_name_server_needs_no_configuration_of_the_machine(
    server: DnsServer, tmp_path: Path
) -> None:
    server.records = a({"vllm.test.": ["10.0.0.1"]})
    missing = tmp_path / "resolv.conf"
    resolver = Resolver(server.address, configuration=missing, hosts=tmp_path / "hosts")
    assert (await resolver.resolve("vllm.test")).addresses == ("10.0.0.1",)


def test_lists_of_ip_addresses_do_not_import_the_dns_library() -> None:
    program = "import sys, extproc.app; sys.exit('dns' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
