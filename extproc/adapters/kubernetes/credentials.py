"""Finds the credentials for the API server."""

from __future__ import annotations

import os
from pathlib import Path

from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from extproc.adapters.kubernetes.errors import KubernetesError, one_line


async def load_credentials(kubeconfig: Path | None) -> Configuration:
    """Return the credentials of `kubeconfig`, else of this pod, else those that kubectl uses.

    Raises KubernetesError if there are none.
    """
    configuration = Configuration()
    # Python 3.13 refuses certificates without an authority key identifier, as older clusters have
    # them. client-go does not require one. The chain is still verified.
    configuration.disable_strict_ssl_verification = True
    try:
        if _uses_pod(kubeconfig):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            source = _source(kubeconfig)
            _check_existence(source)
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=source,
                client_configuration=configuration,
                persist_config=False,
            )
    except Exception as error:
        # The loaders raise any exception that a malformed file provokes.
        raise unusable_credentials(kubeconfig, error) from None
    return configuration


def unusable_credentials(kubeconfig: Path | None, error: Exception) -> KubernetesError:
    """Return the error for credentials that are missing or unusable."""
    source = "this pod" if _uses_pod(kubeconfig) else _source(kubeconfig)
    return KubernetesError(f"no credentials for Kubernetes in {source}: {one_line(error)}")


def _uses_pod(kubeconfig: Path | None) -> bool:
    return kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ


def _source(kubeconfig: Path | None) -> str:
    return str(kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION)


def _check_existence(kubeconfig: str) -> None:
    """Raise FileNotFoundError if no file exists: the loader would only report a missing key."""
    if not any(Path(place).expanduser().exists() for place in kubeconfig.split(os.pathsep)):
        raise FileNotFoundError("there is no such file")
