"""The metrics of a real sidecar, a real Envoy and a stand-in vLLM, as Prometheus scrapes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.manifests.gateway import run_gateway

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
    """Run the bundled gateway, send various requests, and scrape all three components."""
    async with run_gateway(directory, "QueueKVCache") as gateway:
        assert (await gateway.ask("hello"))[0] == 200
        await gateway.session.post(gateway.envoy.url + "/v1/chat/completions", data=b"{")
        async with gateway.session.get(gateway.sidecar.admin + "/metrics") as answer:
            sidecar = await answer.text()
        gateway.kill_sidecar()
        assert (await gateway.ask("without a sidecar"))[0] == 200
        async with gateway.session.get(f"http://{gateway.replicas.addresses[0]}/metrics") as answer:
            vllm = await answer.text()
        await gateway.replicas.kill()
        assert (await gateway.ask("without a model server"))[0] == 503
        _, envoy = await gateway.stats("/stats/prometheus")
    return {"extproc": read(sidecar), "extproc-envoy": read(envoy), "vllm": read(vllm)}
