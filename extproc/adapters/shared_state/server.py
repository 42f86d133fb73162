"""The server of the shared state: its URL and credentials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

TIMEOUT_SECONDS = 1.0
"""The longest wait for a connection or for a response."""


@dataclass(frozen=True)
class SharedStateServer:
    """A Redis or Valkey server, and the key under which the sidecars share their state."""

    url: str
    """`redis://`, `rediss://` or `unix://`, as the redis package reads it."""

    key: str
    """The key of the stream, and the beginning of all other keys."""

    password_file: Path | None = None
    """A file with the password, which is read for each connection; None for the URL's password."""

    def __str__(self) -> str:
        """Return the URL without credentials and options."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def check(self) -> None:
        """Raise ValueError if the URL has an unknown option or a value that is not possible."""
        # The redis package is imported only if it is used.
        from redis import RedisError

        try:
            self._connection({})
        except (TypeError, ValueError, RedisError) as error:
            raise ValueError(f"{self}: {error}") from None

    def connection(self) -> AbstractConnection:
        """Return a new connection, which is not yet open. Raises OSError."""
        if self.password_file is None:
            return self._connection({})
        try:
            password = self.password_file.read_text().strip()
        except UnicodeDecodeError:
            raise OSError(f"{self.password_file} is not text") from None
        return self._connection({"password": password})

    def _connection(self, credentials: dict[str, Any]) -> AbstractConnection:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        client = Redis.from_url(
            self.url,
            protocol=2,
            socket_timeout=None,  # a task for each command; the stream has a limit of its own
            socket_connect_timeout=TIMEOUT_SECONDS,
            client_name="extproc",
            retry=Retry(NoBackoff(), 0),
        )
        # As arguments of `from_url`, they would yield to those in the URL.
        client.connection_pool.connection_kwargs.update(credentials)
        connection: AbstractConnection = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        return connection
