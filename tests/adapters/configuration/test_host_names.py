from __future__ import annotations

import pytest

from extproc.adapters.configuration.document import DocumentError, parse
from extproc.adapters.configuration.host_names import resolved
from extproc.adapters.dns.lookup import NoAddresses, Resolved

DOCUMENT = b"""
models:
- {name: a, endpoints: ['vllm:80', '10.0.0.9:80', 'other:81']}
- {name: b, endpoints: ['10.0.0.8:80']}
- {name: c, split: {targets: [{model: a, weight: 1}]}}
"""


async def test_names_are_replaced_by_addresses() -> None:
    async def resolve(host: str) -> Resolved:
        return Resolved(("10.0.0.1", "169.254.169.254") if host == "vllm" else ("fd00::1",), 60)

    spec = parse(DOCUMENT)
    after = await resolved(spec, resolve)
    assert after.models[0].endpoints == ("10.0.0.1:80", "10.0.0.9:80", "[fd00::1]:81")
    assert after.models[0].source is None
    assert after.models[1:] == spec.models[1:]
    assert spec == parse(DOCUMENT)


async def test_each_unresolved_name_is_a_problem_with_its_location() -> None:
    async def resolve(host: str) -> Resolved:
        raise NoAddresses("the name does not exist")

    with pytest.raises(DocumentError) as refused:
        await resolved(parse(DOCUMENT), resolve)
    assert refused.value.problems == (
        "models[0].endpoints[0]: vllm does not resolve here: the name does not exist",
        "models[0].endpoints[2]: other does not resolve here: the name does not exist",
    )
