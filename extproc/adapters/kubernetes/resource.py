"""A set of Kubernetes objects to list and watch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import ValidationError

from extproc.adapters.kubernetes.errors import MalformedResponse
from extproc.adapters.kubernetes.objects import KubernetesObject

Kept = TypeVar("Kept", bound=KubernetesObject)


@dataclass(frozen=True)
class Resource(Generic[Kept]):
    """A collection's path, the selectors, and the fields of its objects that are kept."""

    plural: str
    path: str
    kept: type[Kept]
    label_selector: str = ""
    field_selector: str = ""

    @property
    def selector(self) -> str:
        """The selector that is set; empty if none is."""
        return self.label_selector or self.field_selector

    @property
    def query(self) -> dict[str, object]:
        """The selectors as query parameters."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in selectors.items() if value}

    def read(self, item: object) -> Kept:
        """Return the kept fields of an object. Raises MalformedResponse."""
        try:
            return self.kept.model_validate(item)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise MalformedResponse(f"{self.kept.__name__} {where}: {first['msg']}") from None
