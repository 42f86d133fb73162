from __future__ import annotations

import pytest
from pydantic import ValidationError

from extproc.core.spec import LoadBalancingSpec
from tests.core.builders import model_spec


def test_the_defaults_are_those_users_know_from_kubeai() -> None:
    balancing = LoadBalancingSpec()
    assert balancing.strategy == "PrefixHash"
    prefix_hash = balancing.prefix_hash
    assert prefix_hash.mean_load_factor == 125
    assert prefix_hash.prefix_char_length == 100
    assert prefix_hash.replication == 256
    assert prefix_hash.prefix_source == "FirstUserMessage"


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("10.0.0.1:08000", "10.0.0.1:8000"),
        ("[::1]:8000", "[::1]:8000"),
        ("[0:0:0:0:0:0:0:1]:8000", "[::1]:8000"),
        ("[2001:DB8::A]:1", "[2001:db8::a]:1"),
    ],
)
def test_an_endpoint_has_one_form(written: str, canonical: str) -> None:
    assert model_spec(endpoints=[written]).endpoints == (canonical,)


@pytest.mark.parametrize(
    "written",
    [
        *["", ":", ":8000", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536"],
        *["10.0.0.1:-1", "10.0.0.1:+1", "10.0.0.1: 80", "10.0.0.1:\u0668", "10.0.0.256:80"],
        *["010.0.0.1:80", "vllm:8000", "::1:8000", "[::1]", "[::1]8000", "[::1:8000", "::1]:8000"],
        *["[10.0.0.1]:8000", "[[::1]]:8000", "http://10.0.0.1:80", "10.0.0.1:80\n"],
        "10.0.0.1:" + "9" * 5000,
    ],
)
def test_what_is_no_ip_and_port_is_refused(written: str) -> None:
    with pytest.raises(ValidationError):
        model_spec(endpoints=[written])


@pytest.mark.parametrize(
    ("source", "header"),
    [
        ("FirstUserMessage", None),
        ("PromptHead", None),
        ("Header:X-Session-ID", "x-session-id"),
        ("Header:x", "x"),
    ],
)
def test_a_header_source_is_known_by_its_lower_case_name(source: str, header: str | None) -> None:
    assert model_spec(prefixSource=source).load_balancing.prefix_hash.header == header


def test_specs_that_differ_in_the_case_of_a_header_are_equal() -> None:
    assert model_spec(prefixSource="Header:X-S") == model_spec(prefixSource="Header:x-s")


def test_a_model_tells_every_name_it_answers_to_and_where_it_stands() -> None:
    spec = model_spec("llama", aliases=["a", "b"], adapters=["sql"])
    assert list(spec.names()) == [
        ("name", "llama"),
        ("aliases[0]", "a"),
        ("aliases[1]", "b"),
        ("adapters[0]", "sql"),
    ]
