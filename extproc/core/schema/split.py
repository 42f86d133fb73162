"""A model name whose requests are split between other models by weight: `split`."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from extproc.core.schema.load_balancing import PrefixHashSpec
from extproc.core.schema.sessions import SESSION, SessionSources
from extproc.core.schema.values import Items, Name, PrefixSource, Spec, unique


class TargetSpec(Spec):
    """A model that receives a share of a split's requests."""

    model: Name
    """The name of a model of this document, or of one of its configured adapters."""

    weight: int = Field(ge=0, le=1_000_000)
    """The model's share is its weight divided by the sum of all weights. A target with weight 0
    receives requests only if no other target has endpoints."""


class SplitSpec(Spec):
    """Models that share the requests for one name by weight. Requests with the same `stickyBy` key
    go to the same target, as long as it has endpoints. If a weight changes, only as many keys as
    necessary move to another target.
    """

    targets: Items[TargetSpec]
    """The models. The sidecar writes the target's model name into the body."""

    sticky_by: PrefixSource = "FirstUserMessage"
    """The source of the key; see [Strategies](#strategies)."""

    prefix_char_length: int = Field(default=100, ge=1, le=1_000_000)
    """Length of the key, in characters of the source's text. Headers and session ids are not
    shortened."""

    session_sources: SessionSources | None = None
    """Headers and body fields that may hold the session's id, for `stickyBy: Session`. Default: as
    in `prefixHash`."""

    @model_validator(mode="after")
    def _session_sources_match_sticky_by(self) -> SplitSpec:
        if self.session_sources is not None and self.sticky_by != SESSION:
            raise ValueError("'sessionSources' needs 'stickyBy: Session'")
        return self

    @field_validator("targets", mode="after")
    @classmethod
    def _targets_are_valid(cls, targets: tuple[TargetSpec, ...]) -> tuple[TargetSpec, ...]:
        unique([target.model for target in targets])
        if not any(target.weight for target in targets):
            raise ValueError("at least one target must have a weight above 0")
        return targets

    @property
    def key(self) -> PrefixHashSpec:
        """The settings for reading the key."""
        return PrefixHashSpec.model_construct(
            prefix_source=self.sticky_by,
            prefix_char_length=self.prefix_char_length,
            session_sources=self.session_sources,
        )
