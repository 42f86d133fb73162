"""CPU time of a request with TLS between Envoy and the sidecar, on each transport.

Run `python -m extproc.lab.bench.tls`; it takes half a minute.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import trustme
from rich.console import Console

from extproc.edge.tls import KeyPair
from extproc.lab.bench.rows import Effort, measure
from extproc.lab.bench.ways import of_transport, ways, with_tls

EFFORT = Effort(("1 kB", "32 kB", "400 kB"), (32,), rounds=3)


def main() -> None:
    """Print a line for each setup and size."""
    console = Console()
    with TemporaryDirectory(prefix="extproc-bench-") as name:
        directory = Path(name)
        plain = [way for way in ways(with_peers=False) if way.name == of_transport("fast")]
        compared = [*plain, *with_tls(_key_pair(directory))]
        for row in asyncio.run(measure(compared, EFFORT, directory, lambda: None)):
            figures = row.figures
            console.print(
                f"{row.size}, {row.connections} connections, {row.way}: "
                f"sidecar {figures.sidecar_us:.0f} us, Envoy {figures.proxy_us:.0f} us, "
                f"{figures.per_second:.0f} requests/s, {figures.sidecar_mb:.0f} MB, "
                f"{figures.failed} failed"
            )


def _key_pair(directory: Path) -> KeyPair:
    pair = KeyPair(directory / "tls.crt", directory / "tls.key")
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(pair.certificate)
    issued.private_key_pem.write_to_path(pair.key)
    return pair


if __name__ == "__main__":
    main()
