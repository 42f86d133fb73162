"""The settings of a sidecar."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from extproc.adapters.dns.lookup import NameServer
from extproc.adapters.shared_state.server import SharedStateServer
from extproc.adapters.tracing.endpoint import OtlpEndpoint
from extproc.edge.grpc.server import Transport
from extproc.edge.tls import KeyPair


@dataclass(frozen=True)
class ConfigMapName:
    """The namespace and the name of the ConfigMap with the models document."""

    namespace: str
    name: str


@dataclass(frozen=True)
class Settings:
    """The settings of `extproc serve`."""

    listen: str
    """The address for Envoy: HOST:PORT or unix:PATH."""

    admin: str
    """The address of the admin port, with metrics and health: HOST:PORT or unix:PATH."""

    models: Path | ConfigMapName
    """The models document."""

    grace: float
    """Seconds that running streams get after SIGTERM."""

    kubeconfig: Path | None = None
    """Credentials for Kubernetes; None for those of the pod or, outside of a pod, kubectl's."""

    allow_loopback: bool = False
    """True if discovered endpoints may be loopback addresses, for local work."""

    dns_server: NameServer | None = None
    """Name server for endpoints' host names; None for those of /etc/resolv.conf."""

    single_endpoint: bool = False
    """True if decisions name no second candidate, for gateways that read only one address."""

    pass_unknown: bool = False
    """True if requests to unknown paths pass undecided to Envoy's other routes."""

    log_prompts: bool = False
    """True if the debug lines of requests show the text that was hashed."""

    transport: Transport = "fast"
    """The gRPC server implementation on the port for Envoy."""

    tls: KeyPair | None = None
    """The key pair of the port for Envoy; None for plain text."""

    status_page: bool = True
    """True if the admin port has the status page."""

    shared_state: SharedStateServer | None = None
    """The server through which sidecars share their state; None if they share nothing."""

    otlp: OtlpEndpoint | None = None
    """The receiver of traces; None if decisions are not traced."""
