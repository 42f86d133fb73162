"""The metrics of a real sidecar, a real Envoy and a stand-in vLLM, as Prometheus scrapes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from extproc.adapters.shared_state.codec import encode_batch
from extproc.core.sharing.batch import Batch
from extproc.lab.stack.processes import until
from tests.extent import PATIENCE
from tests.manifests.gateway import RunningGateway, run_gateway
from tests.manifests.valkey import BundledValkey

_TYPE = re.compile(r"# TYPE (\S+) \w+")
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? \S+")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = dict[str, str]


@dataclass(frozen=True)
class Exposition:
    """Names and samples of one `/metrics` response."""

    names: frozenset[str]
    samples: tuple[tuple[str, Labels], ...]

    def of(self, name: str) -> Iterator[Labels]:
        """Yield the labels of each sample of a metric."""
        return (labels for found, labels in self.samples if found == name)

    def label_names(self) -> set[str]:
        """Return the names of all labels."""
        return {label for _, labels in self.samples for label in labels}


def read(text: str) -> Exposition:
    """Parse Prometheus' text format."""
    names = {match[1] for match in map(_TYPE.match, text.splitlines()) if match}
    samples = []
    for line in text.splitlines():
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line)
        if match:
            samples.append((match[1], dict(_LABEL.findall(match[2] or ""))))
    return Exposition(frozenset(names | {name for name, _ in samples}), tuple(samples))


async def scrape(directory: Path) -> dict[str, Exposition]:
    """Run the bundled gateway, send various requests, and scrape all three components.

    Its sidecar shares its state with a peer, which also sends an unreadable message.
    """
    valkey = BundledValkey(directory)
    try:
        await valkey.start()
        flags = [
            f"--shared-state={valkey.url}",
            f"--shared-state-password-file={valkey.password_file}",
        ]
        async with run_gateway(directory, "QueueKVCache", arguments=flags) as gateway:
            for message in (encode_batch(Batch("peer")), b"unreadable"):
                valkey.call("XADD", "extproc", "*", "o", "peer", "b", message)
            return await _scrape(gateway)
    finally:
        await valkey.kill()


async def _scrape(gateway: RunningGateway) -> dict[str, Exposition]:
    assert (await gateway.ask("hello"))[0] == 200
    await gateway.session.post(gateway.envoy.url + "/v1/chat/completions", data=b"{")
    sidecar = ""

    async def is_unreadable_counted() -> bool:
        nonlocal sidecar
        async with gateway.session.get(gateway.sidecar.admin + "/metrics") as answer:
            sidecar = await answer.text()
        return 'direction="unreadable"' in sidecar

    await until(is_unreadable_counted, PATIENCE, "the peer's messages")
    gateway.kill_sidecar()
    assert (await gateway.ask("without a sidecar"))[0] == 200
    async with gateway.session.get(f"http://{gateway.replicas.addresses[0]}/metrics") as answer:
        vllm = await answer.text()
    await gateway.replicas.kill()
    assert (await gateway.ask("without a model server"))[0] == 503
    _, envoy = await gateway.stats("/stats/prometheus")
    return {"extproc": read(sidecar), "extproc-envoy": read(envoy), "vllm": read(vllm)}
