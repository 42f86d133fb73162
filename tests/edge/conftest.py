from __future__ import annotations

import tests.edge.quiet_envoy  # noqa: F401
