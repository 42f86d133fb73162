"""Kubernetes Events, which `kubectl describe` shows under an object."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from hashlib import sha256
from typing import Literal

from extproc.adapters.kubernetes.objects import ConfigMap, Json

# The API refuses longer messages.
_LONGEST_MESSAGE = 1024

# The API refuses names of more than 253 characters.
_LONGEST_PREFIX = 236


def event(
    about: ConfigMap, kind: Literal["Normal", "Warning"], reason: str, message: str
) -> tuple[str, Json]:
    """Return the path and the body of an Event on a ConfigMap.

    All sidecars give the same name to the Event for a version of the ConfigMap and a reason. So the
    first one creates it, and the API server refuses it to the others (409). They could count it in
    the same Event only with the permission to patch Events.
    """
    metadata = about.metadata
    version = "/".join((metadata.uid, metadata.resource_version, reason))
    version = sha256(version.encode()).hexdigest()[:16]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata.name[:_LONGEST_PREFIX].rstrip('.-')}.{version}",
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
