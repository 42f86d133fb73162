from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.schema.addresses import endpoint_address, has_host_name, split_address
from tests.core.builders import thorough


@pytest.mark.parametrize(
    ("text", "canonical", "host", "named"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000", "10.0.0.1", False),
        ("[2001:DB8::0A]:08000", "[2001:db8::a]:8000", "2001:db8::a", False),
        ("vLLM-1:80", "vllm-1:80", "vllm-1", True),
        ("a.b.:80", "a.b.:80", "a.b.", True),
        ("under_score:80", "under_score:80", "under_score", True),
        ("xn--bcher-kva.example:80", "xn--bcher-kva.example:80", "xn--bcher-kva.example", True),
        ("1.example:80", "1.example:80", "1.example", True),
        (f"{'a' * 63}.b:80", f"{'a' * 63}.b:80", f"{'a' * 63}.b", True),
        ("169.254.7.1:80", "169.254.7.1:80", "169.254.7.1", False),
    ],
)
def test_address_has_one_canonical_form(text: str, canonical: str, host: str, named: bool) -> None:
    assert endpoint_address(text) == canonical
    assert split_address(canonical)[0] == host
    assert has_host_name(canonical) is named


@pytest.mark.parametrize(
    "host",
    [
        *("", ".", "a..b", "-a", "a-", "a b", "a,b", "a@b", "*.a", "bücher", "a\n", "\x00"),
        *("1.2.3", "10.0.0.256", "10.0.0.01", "a.1", "0x7f.0x1", "a" * 64, "a." * 127),
        *("[", "]", "[]", "[a]", "[10.0.0.1]", "::1", "1::2::3", "user:pw@a"),
        *("0.0.0.0", "[::]", "224.0.0.1", "[ff02::1]"),
    ],
)
def test_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        endpoint_address(f"{host}:80")


@pytest.mark.parametrize("port", ["", "0", "65536", "-1", "+1", "http", "8 0", "٣", "1e3"])
def test_invalid_port_is_refused(port: str) -> None:
    for host in ("10.0.0.1", "[::1]", "vllm"):
        with pytest.raises(ValueError, match="the port must be a number from 1 to 65535"):
            endpoint_address(f"{host}:{port}")


@thorough
@given(st.text(max_size=40) | st.from_regex(r"[-a-z0-9._\[\]:]{1,30}:[0-9]{1,5}", fullmatch=True))
def test_canonical_form_is_stable_for_any_valid_text(text: str) -> None:
    try:
        canonical = endpoint_address(text)
    except ValueError:
        return
    assert endpoint_address(canonical) == canonical
    host, port = split_address(canonical)
    assert 0 < port < 65536
    assert has_host_name(canonical) is (":" not in host and not host.split(".")[-1].isdigit())
