"""Kubernetes Events, which `kubectl describe` shows under an object."""

from __future__ import annotations

import socket
import uuid
from datetime import UTC, datetime
from typing import Literal

from extproc.adapters.kubernetes.objects import ConfigMap, Json

# The API refuses longer messages.
_LONGEST_MESSAGE = 1024


def event(
    about: ConfigMap, kind: Literal["Normal", "Warning"], reason: str, message: str
) -> tuple[str, Json]:
    """Return the path and the body of a new Event on a ConfigMap."""
    metadata = about.metadata
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata.name}.{uuid.uuid4().hex[:16]}",
            "namespace": metadata.namespace,
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "namespace": metadata.namespace,
            "name": metadata.name,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
        },
        "type": kind,
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "source": {"component": "extproc", "host": socket.gethostname()},
        "reportingComponent": "extproc",
        "reportingInstance": socket.gethostname(),
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    return f"/api/v1/namespaces/{metadata.namespace}/events", body
