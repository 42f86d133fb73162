"""API servers with one scripted handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import yaml
from aiohttp import web

from extproc.adapters.kubernetes.api import WatchSeconds
from extproc.adapters.kubernetes.http_api import KubernetesApi

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


StartServer = Callable[[Handler], Awaitable[KubernetesApi]]


MINUTE = WatchSeconds(60, 60)


MAPS = "/api/v1/namespaces/ns/configmaps"


def write_kubeconfig(directory: Path, server: str) -> Path:
    path = directory / "kubeconfig.yaml"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path
