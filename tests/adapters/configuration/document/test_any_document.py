from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.adapters.configuration.document import DocumentError, parse
from tests.extent import extent

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.dates(),
    st.datetimes(),
    st.binary(max_size=5),
    st.text(max_size=5),
    st.sampled_from(["10.0.0.1:8000", "[::1]:1", "PrefixHash", "Header:x", "a", "http"]),
)


known_keys = st.sampled_from(
    [
        *["models", "name", "aliases", "endpoints", "service", "inferencePool", "adapters"],
        "loadBalancing",
        *["strategy", "prefixHash", "meanLoadFactor", "prefixCharLength", "replication"],
        *["prefixSource", "sessionSources", "namespace", "port"],
    ]
)


keys = known_keys | st.text(max_size=5) | st.integers() | st.none() | st.dates()


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)


anything = st.recursive(scalars, containers, max_leaves=12)


documents = anything | st.fixed_dictionaries(
    {
        "models": st.lists(
            st.fixed_dictionaries(
                {"name": anything},
                optional={
                    "endpoints": st.lists(scalars, max_size=2) | anything,
                    "aliases": anything,
                    "service": anything,
                    "inferencePool": anything,
                    "loadBalancing": st.dictionaries(known_keys, anything, max_size=3),
                },
            ),
            max_size=3,
        )
    }
)


def taken_or_refused(text: bytes) -> tuple[object, ...]:
    """Return the models or the problems; any other exception fails the test."""
    try:
        models: tuple[object, ...] = parse(text).models
    except DocumentError as refused:
        models = refused.problems
    assert models
    return models


@settings(max_examples=extent(40, 300))
@given(documents)
def test_any_document_is_accepted_or_refused_with_reasons(document: object) -> None:
    try:
        text = yaml.safe_dump(document, allow_unicode=True).encode()
    except (yaml.YAMLError, UnicodeEncodeError):
        return
    assert all(taken_or_refused(text))


@settings(max_examples=extent(40, 300))
@given(
    st.binary()
    | st.lists(
        st.sampled_from(
            [
                *["models", ":", " ", "\n", "- ", "[", "]", "{", "}", "'", '"', "&a", "*a", "<<"],
                *["!!str ", "!!seq ", "|", ">", "%", "#", "~", ",", "a"],
            ]
        )
    ).map(lambda parts: "".join(parts).encode())
)
def test_any_text_is_accepted_or_refused(text: bytes) -> None:
    assert all(taken_or_refused(text))
