"""A conversation that can say what its decision hung on, for who has asked to see prompts."""

from __future__ import annotations

from extproc.core.conversation.events import Kind, Proceed
from extproc.core.conversation.state_machine import Conversation, Phase
from extproc.core.routing.resolved_request import ResolvedRequest


class PrefixKeepingConversation(Conversation):
    """Keeps the prefix for as long as the stream lives: others do not, nor do they pay for this."""

    __slots__ = ("prefix",)

    prefix: str
    """The text that was hashed, once there is a decision."""

    def _decide(
        self, kind: Kind, resolved: ResolvedRequest, phase: Phase = Phase.ROUTED
    ) -> tuple[Proceed]:
        self.prefix = resolved.prefix
        return super()._decide(kind, resolved, phase)
