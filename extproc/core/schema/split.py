"""A name whose requests other models share by weight: `split`."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from extproc.core.schema.load_balancing import PrefixHashSpec
from extproc.core.schema.sessions import SESSION, SessionSources
from extproc.core.schema.values import Items, Name, PrefixSource, Spec, unique


class TargetSpec(Spec):
    """A model that takes a share of a split."""

    model: Name
    """A model of this document by its name, or one of its configured adapters."""

    weight: int = Field(ge=0, le=1_000_000)
    """Its share is its weight over the sum of all. 0: only if no other target has endpoints."""


class SplitSpec(Spec):
    """Models that share the requests of one name, by weight. A request that is like another in
    what `stickyBy` names goes to the same target, as long as that has endpoints; when a weight
    changes, only those move that have to.
    """

    targets: Items[TargetSpec]
    """The models; the body's model becomes the target's."""

    sticky_by: PrefixSource = "FirstUserMessage"
    """What requests must share to go to the same target."""

    prefix_char_length: int = Field(default=100, ge=1, le=1_000_000)
    """Characters of it that count; a header and a session's id count whole."""

    session_sources: SessionSources | None = None
    """For `stickyBy: Session`: where to look for a session's id. Where it is not given: as in
    `prefixHash`."""

    @model_validator(mode="after")
    def _reads_sessions_if_it_lists_sources(self) -> SplitSpec:
        if self.session_sources is not None and self.sticky_by != SESSION:
            raise ValueError("'sessionSources' means nothing without 'stickyBy: Session'")
        return self

    @field_validator("targets", mode="after")
    @classmethod
    def _targets_share(cls, targets: tuple[TargetSpec, ...]) -> tuple[TargetSpec, ...]:
        unique([target.model for target in targets])
        if not any(target.weight for target in targets):
            raise ValueError("one target at least must have a weight above 0")
        return targets

    @property
    def key(self) -> PrefixHashSpec:
        """How the text that makes requests alike is read."""
        return PrefixHashSpec.model_construct(
            prefix_source=self.sticky_by,
            prefix_char_length=self.prefix_char_length,
            session_sources=self.session_sources,
        )
