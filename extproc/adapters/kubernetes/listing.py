"""Lists a set of objects, page by page."""

from __future__ import annotations

import asyncio
from typing import Generic, NamedTuple

from extproc.adapters.kubernetes.api import Api
from extproc.adapters.kubernetes.errors import ApiStatusError, MalformedResponse
from extproc.adapters.kubernetes.resource import Kept, Resource

PAGE = 500
"""Objects of one page."""

_AT_ONCE = 8
"""Objects that are read before other tasks run. A slice of 100 endpoints takes a millisecond."""

EXPIRED = 410
"""Status for a resourceVersion or a page token that the server no longer knows."""


class Listing(NamedTuple, Generic[Kept]):
    """All objects of a resource, and the version from which a watch continues."""

    version: str
    objects: dict[str, Kept]


async def list_objects(api: Api, resource: Resource[Kept]) -> Listing[Kept]:
    """Return all pages of a list, which are one snapshot. Raises KubernetesError.

    If the snapshot expires before the last page, list again without pages.
    """
    try:
        return await _pages(api, resource, PAGE)
    except ApiStatusError as error:
        if error.code != EXPIRED:
            raise
        return await _pages(api, resource, None)


async def _pages(api: Api, resource: Resource[Kept], limit: int | None) -> Listing[Kept]:
    objects: dict[str, Kept] = {}
    query = resource.query | ({} if limit is None else {"limit": limit})
    while True:
        page = await api.get(resource.path, query)
        for number, item in enumerate(page.get("items") or ()):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            kept = resource.read(item)
            objects[kept.metadata.name] = kept
        metadata = page.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("resourceVersion"):
            raise MalformedResponse("the list has no resourceVersion")
        if not metadata.get("continue"):
            return Listing(str(metadata["resourceVersion"]), objects)
        query["continue"] = metadata["continue"]
