from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.endpoints.screening import RejectionReason, Screen, parse_ip
from tests.core.builders import thorough

API_SERVER = (
    (ipaddress.ip_address("10.96.0.1"), 443),
    (ipaddress.ip_address("2001:db8::1"), 6443),
    (ipaddress.ip_address("127.0.0.1"), 6443),
)
STRICT = Screen(API_SERVER, allow_loopback=False)
LOCAL = Screen(API_SERVER, allow_loopback=True)

addresses = st.ip_addresses().map(str)


@pytest.mark.parametrize(
    "address", ["10.0.0.7", "192.168.1.1", "100.64.0.1", "8.8.8.8", "fd00::7", "2001:db8::7"]
)
def test_address_of_a_pod_is_allowed(address: str) -> None:
    assert STRICT.rejection(address, 8000) is None


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        *[
            (a, RejectionReason.NO_ADDRESS)
            for a in ("", "vllm", "10.0.0", "10.0.0.256", "10.0.0.1:80")
        ],
        *[
            (a, RejectionReason.NO_ADDRESS)
            for a in ("[::1]", "010.0.0.1", "10.0.0.1 ", "1e1", "::g")
        ],
        *[(a, RejectionReason.UNSPECIFIED) for a in ("0.0.0.0", "::", "0:0::0")],
        *[(a, RejectionReason.LOOPBACK) for a in ("127.0.0.1", "127.255.255.254", "::1", "0::1")],
        *[
            (a, RejectionReason.METADATA)
            for a in ("fd00:ec2::254", "168.63.129.16", "100.100.100.200")
        ],
        ("2002:a9fe:a9fe::1", RejectionReason.RESERVED),
        *[(a, RejectionReason.LINK_LOCAL) for a in ("169.254.169.254", "fe80::1", "fe80::1%eth0")],
        *[(a, RejectionReason.MULTICAST) for a in ("224.0.0.1", "239.1.2.3", "ff02::1")],
        *[(a, RejectionReason.RESERVED) for a in ("240.0.0.1", "255.255.255.255", "0.1.2.3")],
        *[(a, RejectionReason.API_SERVER) for a in ("10.96.0.1", "2001:db8::1", "2001:0db8:0::1")],
    ],
)
def test_special_addresses_are_rejected(address: str, reason: RejectionReason) -> None:
    assert STRICT.rejection(address, 8000) is reason


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("::ffff:127.0.0.1", RejectionReason.LOOPBACK),
        ("::ffff:7f00:1", RejectionReason.LOOPBACK),
        ("::FFFF:169.254.169.254", RejectionReason.LINK_LOCAL),
        ("::ffff:0.0.0.0", RejectionReason.UNSPECIFIED),
        ("::ffff:224.0.0.1", RejectionReason.MULTICAST),
        ("::ffff:255.255.255.255", RejectionReason.RESERVED),
        ("::ffff:10.96.0.1", RejectionReason.API_SERVER),
        # Old notations of IPv4 addresses, to which a translating gateway (NAT64) listens.
        ("::127.0.0.1", RejectionReason.RESERVED),
        ("64:ff9b::169.254.169.254", RejectionReason.RESERVED),
    ],
)
def test_ipv4_mapped_ipv6_address_is_rejected_like_ipv4(
    address: str, reason: RejectionReason
) -> None:
    assert STRICT.rejection(address, 8000) is reason


def test_ipv4_mapped_ipv6_address_is_parsed_as_ipv4() -> None:
    assert parse_ip("::ffff:10.0.0.7") == ipaddress.ip_address("10.0.0.7")
    assert STRICT.rejection("::ffff:10.0.0.7", 8000) is None


class TestLoopback:
    @pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"])
    def test_is_allowed_with_allow_loopback(self, address: str) -> None:
        assert STRICT.rejection(address, 8000) is RejectionReason.LOOPBACK
        assert LOCAL.rejection(address, 8000) is None

    @pytest.mark.parametrize("address", ["0.0.0.0", "169.254.169.254", "224.0.0.1", "240.0.0.1"])
    def test_permission_covers_no_other_address(self, address: str) -> None:
        assert LOCAL.rejection(address, 8000) is not None


class TestApiServer:
    @pytest.mark.parametrize("port", [443, 6443, 10250, 8000])
    def test_is_rejected_on_every_port(self, port: int) -> None:
        assert STRICT.rejection("10.96.0.1", port) is RejectionReason.API_SERVER
        assert LOCAL.rejection("2001:db8::1", port) is RejectionReason.API_SERVER

    def test_is_rejected_on_loopback_only_on_its_own_port(self) -> None:
        assert LOCAL.rejection("127.0.0.1", 6443) is RejectionReason.API_SERVER
        assert LOCAL.rejection("::ffff:127.0.0.1", 6443) is RejectionReason.API_SERVER
        assert LOCAL.rejection("127.0.0.1", 8000) is None


@thorough
@given(addresses, st.integers(1, 65535))
def test_no_special_address_is_allowed(address: str, port: int) -> None:
    ip = parse_ip(address)
    assert ip is not None
    special = (
        ip.is_loopback
        or ip.is_link_local
        or ip.is_multicast
        or ip.is_unspecified
        or ip.is_reserved
        or ip in ipaddress.ip_network("0.0.0.0/8")
        or ip in ipaddress.ip_network("2002::/16")
        or STRICT.rejection(address, port) is RejectionReason.METADATA
    )
    assert (STRICT.rejection(address, port) is None) == (
        not special and ip not in {one for one, _ in API_SERVER}
    )


@thorough
@given(addresses | st.text(max_size=45), st.integers(1, 65535))
def test_any_text_is_allowed_or_rejected(address: str, port: int) -> None:
    for screen in (STRICT, LOCAL):
        assert screen.rejection(address, port) in (None, *RejectionReason)
