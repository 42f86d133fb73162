"""Excludes all imported modules from garbage collection in a fork server.

The sidecar collects garbage when it starts. A forked sidecar would scan, and so copy, the memory
of all modules. The fork server imports this module last.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
