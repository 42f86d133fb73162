"""Detects if the package was compiled, without importing compiled modules."""

from __future__ import annotations

from importlib.util import find_spec

_spec = find_spec("extproc.core.conversation.state_machine")

COMPILED = _spec is not None and not str(_spec.origin).endswith(".py")
"""True if mypyc compiled the modules on the request path (`make compiled`)."""
