"""Finds the credentials for the API server, and reads them again when their files change."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import incluster_config

from extproc.adapters.kubernetes.errors import KubernetesError, one_line
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.kubernetes")

Contents = Mapping[Path, bytes | None]
"""The content of each file; None for one that cannot be read."""


@dataclass(frozen=True)
class _Reading:
    """One reading of the credentials, and of the files from which they come."""

    configuration: Configuration
    tls: ssl.SSLContext
    tls_http2: ssl.SSLContext
    contents: Contents

    @property
    def tls_contents(self) -> Contents:
        """The part of `contents` from which the TLS context was made."""
        files = _tls_files(self.configuration)
        return {path: content for path, content in self.contents.items() if str(path) in files}


class Credentials:
    """The credentials of a kubeconfig, else of this pod, else those that kubectl uses.

    Certificate authorities, client certificates and tokens are renewed while the sidecar runs. So
    every file is read before each request: they are small, and requests are rare. Files that are
    unusable, because only some of them are written yet, leave the last good credentials in use.
    """

    def __init__(self, kubeconfig: Path | None, reading: _Reading) -> None:
        self._kubeconfig = kubeconfig
        self._reading = reading
        self._renewing = asyncio.Lock()
        self._reported = ""

    @classmethod
    async def load(cls, kubeconfig: Path | None) -> Credentials:
        """Return the credentials. Raises KubernetesError if there are none, or unusable ones."""
        try:
            return cls(kubeconfig, await _read(kubeconfig, {}))
        except Exception as error:
            # The loaders raise any exception that a malformed file provokes.
            raise unusable_credentials(kubeconfig, error) from None

    @property
    def configuration(self) -> Configuration:
        """The server, the proxy and the names of the files."""
        return self._reading.configuration

    @property
    def tls(self) -> ssl.SSLContext:
        """The TLS context for new connections; another object if the certificates changed."""
        return self._reading.tls

    @property
    def tls_http2(self) -> ssl.SSLContext:
        """The same, but with an offer of HTTP/2 to the server."""
        return self._reading.tls_http2

    @property
    def authorization(self) -> str:
        """Value of the header of this name; empty without a token."""
        return str(self.configuration.api_key.get("BearerToken") or "").strip()

    async def refresh(self) -> None:
        """Read the credentials again if one of their files has changed."""
        async with self._renewing:
            before = self._reading.contents
            now = _contents(before)
            if now != before:
                await self._renew(now)

    async def renew(self, refused: str) -> bool:
        """Read the credentials again after the server refused this authorization.

        Return True if there is another one now. A program that makes tokens runs again.
        """
        async with self._renewing:
            if self.authorization == refused:
                await self._renew(_contents(self._reading.contents))
            return self.authorization != refused

    async def _renew(self, contents: Contents) -> None:
        try:
            reading = await _read(self._kubeconfig, contents)
        except Exception as error:
            why = one_line(error)
            if why != self._reported:
                self._reported = why
                log.warning("credentials not readable, last ones kept", extra=fields(why=why))
            return
        self._reported = ""
        if reading.tls_contents == self._reading.tls_contents:
            # Connections of an equal context can be used again.
            reading = replace(reading, tls=self.tls, tls_http2=self.tls_http2)
        self._reading = reading


def unusable_credentials(kubeconfig: Path | None, error: Exception) -> KubernetesError:
    """Return the error for credentials that are missing or unusable."""
    source = "this pod" if _uses_pod(kubeconfig) else _source(kubeconfig)
    return KubernetesError(f"no credentials for Kubernetes in {source}: {one_line(error)}")


async def _read(kubeconfig: Path | None, before: Contents) -> _Reading:
    """Read the credentials. `before` has contents that were read earlier, if any.

    If a file changes in between, its earlier content makes the next request read it again.
    """
    configuration = Configuration()
    if _uses_pod(kubeconfig):
        config.load_incluster_config(configuration, try_refresh_token=False)  # type: ignore[no-untyped-call]
        files = {incluster_config.SERVICE_TOKEN_FILENAME}
    else:
        source = _source(kubeconfig)
        _check_existence(source)
        loader = await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=source, client_configuration=configuration, persist_config=False
        )
        files = {*source.split(os.pathsep), *_token_file(loader)}
    files |= _tls_files(configuration)
    contents = _contents(Path(file).expanduser() for file in files)
    if contents.keys() == before.keys():
        contents = before
    tls = http2 = _tls_context(configuration)
    if str(configuration.host).startswith("https:"):
        http2 = _tls_context(configuration)
        http2.set_alpn_protocols(["h2", "http/1.1"])
    return _Reading(configuration, tls, http2, contents)


def _contents(files: Iterable[Path]) -> Contents:
    return {file: _content(file) for file in files}


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _tls_files(configuration: Configuration) -> set[str]:
    files = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    return {str(Path(file).expanduser()) for file in files if file}


def _tls_context(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data
    )
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    # Python 3.13 refuses certificates without an authority key identifier, as older clusters have
    # them. client-go does not require one. The chain is still verified.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _uses_pod(kubeconfig: Path | None) -> bool:
    return kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ


def _source(kubeconfig: Path | None) -> str:
    return str(kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION)


def _token_file(loader: Any) -> list[str]:
    """Return the file of the user's token, if the kubeconfig names one."""
    user = loader._user
    file = user.safe_get("tokenFile") if user is not None else None
    # The loader reads it relative to the kubeconfig that has the user.
    return [os.path.join(loader._get_base_path(user.path), file)] if file else []


def _check_existence(kubeconfig: str) -> None:
    """Raise FileNotFoundError if no file exists: the loader would only report a missing key."""
    if not any(Path(place).expanduser().exists() for place in kubeconfig.split(os.pathsep)):
        raise FileNotFoundError("there is no such file")
