"""The host names of a models document, resolved once, for commands that do not watch them."""

from __future__ import annotations

from extproc.adapters.configuration.document import DocumentError
from extproc.adapters.dns.lookup import LookupFailed, Resolve
from extproc.adapters.dns.watcher import found_addresses
from extproc.adapters.endpoints.addresses import FoundAddress
from extproc.adapters.endpoints.selection import select_endpoints
from extproc.core.schema import ModelSpec, ModelsSpec, has_host_name, split_address


async def resolved(spec: ModelsSpec, resolve: Resolve) -> ModelsSpec:
    """Return the document with addresses in place of names.

    Raises DocumentError with a line for each endpoint whose name does not resolve.
    """
    problems: list[str] = []
    models = [
        await _resolved(model, f"models[{position}]", resolve, problems)
        for position, model in enumerate(spec.models)
    ]
    if problems:
        raise DocumentError(problems)
    return spec.model_copy(update={"models": tuple(models)})


async def _resolved(
    model: ModelSpec, path: str, resolve: Resolve, problems: list[str]
) -> ModelSpec:
    addresses: dict[str, tuple[str, ...]] = {}
    for position, endpoint in enumerate(model.endpoints or ()):
        if not has_host_name(endpoint):
            continue
        host, _ = split_address(endpoint)
        try:
            addresses[host] = (await resolve(host)).addresses
        except LookupFailed as failure:
            problems.append(
                f"{path}.endpoints[{position}]: {host} does not resolve here: {failure}"
            )
    if not addresses or problems:
        return model
    reachable = [
        one
        for one in found_addresses(model.endpoints or (), addresses.__getitem__)
        if isinstance(one, FoundAddress)
    ]
    endpoints = tuple(endpoint.address for endpoint in select_endpoints(reachable))
    plain = model.model_copy(update={"endpoints": endpoints})
    # The copy has the cached source of a list with names.
    plain.__dict__.pop("source", None)
    return plain
