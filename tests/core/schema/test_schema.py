from __future__ import annotations

import pytest
from pydantic import ValidationError

from extproc.core.schema import (
    InferencePoolSpec,
    LoadBalancingSpec,
    ModelSpec,
    ServiceSpec,
    kubernetes_name,
)
from extproc.core.schema.values import unique
from tests.core.builders import by_service, model_spec


def test_defaults_are_those_of_kubeai() -> None:
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
def test_endpoint_has_one_canonical_form(written: str, canonical: str) -> None:
    assert model_spec(endpoints=[written]).endpoints == (canonical,)


@pytest.mark.parametrize(
    "written",
    [
        *["", ":", ":8000", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536"],
        *["10.0.0.1:-1", "10.0.0.1:+1", "10.0.0.1: 80", "10.0.0.1:\u0668", "10.0.0.256:80"],
        *["010.0.0.1:80", "::1:8000", "[::1]", "[::1]8000", "[::1:8000", "::1]:8000"],
        *["[10.0.0.1]:8000", "[[::1]]:8000", "http://10.0.0.1:80", "10.0.0.1:80\n"],
        "10.0.0.1:" + "9" * 5000,
    ],
)
def test_endpoint_with_an_invalid_host_or_port_is_refused(written: str) -> None:
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
def test_header_source_is_in_lower_case(source: str, header: str | None) -> None:
    assert model_spec(prefixSource=source).load_balancing.prefix_hash.header == header


def test_case_of_a_header_does_not_change_the_spec() -> None:
    assert model_spec(prefixSource="Header:X-S") == model_spec(prefixSource="Header:x-s")


def test_names_of_a_model_come_with_their_keys() -> None:
    spec = model_spec("llama", aliases=["a", "b"], adapters=["sql"])
    assert list(spec.names()) == [
        ("name", "llama"),
        ("aliases[0]", "a"),
        ("aliases[1]", "b"),
        ("adapters[0]", "sql"),
    ]


SERVICE = {"namespace": "ns", "name": "vllm", "port": "http"}
POOL = {"namespace": "ns", "name": "vllm"}


class TestSourceOfEndpoints:
    def test_is_none_for_a_static_list(self) -> None:
        assert model_spec().source is None

    def test_is_the_service_or_the_pool(self) -> None:
        by_pool = ModelSpec.model_validate({"name": "a", "inferencePool": POOL})
        assert by_pool.source == InferencePoolSpec(namespace="ns", name="vllm")
        assert by_service().source == ServiceSpec(namespace="ns", name="vllm", port="http")

    def test_is_equal_for_models_with_equal_sources(self) -> None:
        assert len({by_service("a").source, by_service("b").source}) == 1
        assert by_service("a").source != by_service("a", name="other").source

    def test_text_names_the_kind_and_the_object(self) -> None:
        assert str(by_service().source) == "service ns/vllm"
        assert str(InferencePoolSpec.model_validate(POOL)) == "InferencePool ns/vllm"

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"service": SERVICE, "inferencePool": POOL},
            {"endpoints": ["10.0.0.1:1"], "service": SERVICE},
            {"endpoints": ["10.0.0.1:1"], "inferencePool": POOL},
            {"endpoints": ["10.0.0.1:1"], "service": SERVICE, "inferencePool": POOL},
            {"endpoints": [], "service": SERVICE},
        ],
    )
    def test_more_or_less_than_one_is_refused(self, given: dict[str, object]) -> None:
        with pytest.raises(ValidationError, match="give one of 'endpoints', 'service', "):
            ModelSpec.model_validate({"name": "a", **given})


@pytest.mark.parametrize("name", ["a", "7", "vllm-llama", "vllm.llama", "a" * 253])
def test_valid_kubernetes_name_is_accepted(name: str) -> None:
    assert kubernetes_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *["", "-a", "a-", ".a", "a.", "A", "a_b", "a/b", "a b", "a\n", "\u00e4", "\u0668"],
        *["../a", "a?watch=true", "a,b", "a=b", "a" * 254],
    ],
)
def test_invalid_kubernetes_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes name"):
        kubernetes_name(name)
    for source in (
        {"service": {**SERVICE, "namespace": name}},
        {"inferencePool": {**POOL, "name": name}},
    ):
        with pytest.raises(ValidationError):
            ModelSpec.model_validate({"name": "a", **source})


class Compared(str):
    """A text that counts the comparisons of all texts."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_value_that_is_listed_twice_is_refused() -> None:
    assert unique(["a", "b"]) == ["a", "b"]
    with pytest.raises(ValueError, match="'a' is listed twice"):
        unique(["a", "b", "a"])


def test_comparing_a_long_list_takes_linear_time() -> None:
    unique([Compared(number) for number in range(2_000)])
    assert Compared.comparisons < 2_000
