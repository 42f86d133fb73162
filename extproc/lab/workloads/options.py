"""Options for a workload."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Options for a workload. A workload refuses options that it does not have."""

    seed: int = 0
    """Seed of all random choices. Replayed files have none."""

    trace: Path | None = None
    """The file to replay."""

    pace: float = 1.0
    """Speed of requests, or of users between them, as a multiple."""

    burstiness: float | None = None
    """Shape of the gamma distribution of pauses, instead of the workload's own."""

    at_once: int | None = None
    """Sessions that start together, instead of the workload's own number."""

    concurrency: int | None = None
    """Concurrent sessions, instead of the workload's own number."""

    sessions: int | None = None
    """The first sessions only, and as many that warm up."""

    replicas: int | None = None
    """Engines of the fleet, if not the workload's own number.

    A trace of another fleet is scaled to them. Your own traffic is not.
    """

    real_conversations: bool = False
    """The KubeAI chat benchmark as documented, not as coded."""

    agreement: float = 1.0
    """Agreement of the prompts in an access log that share a prefix hash, 0 to 1."""
