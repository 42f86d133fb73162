"""The stack of `extproc demo` and `extproc run`: real Envoy and sidecar before stand-in replicas.

The replicas have prefix caches, and their timing follows the model of an L4 (see
`extproc.lab.engine.replica`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from extproc.envoy import envoy_configuration
from extproc.lab.stack.envoy import Envoy, EnvoyAddresses, local_configuration
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from extproc.lab.stack.stand_in_fleet import StandInFleet

MODEL = "llama-3.1-8b-instruct-fp8-l4"
REPLICAS = 8
GATEWAYS = 3
"""Gateways of the second comparison."""

TIME_SCALE = 3.5
"""Speed of a stand-in replica, in multiples of an L4."""


@dataclass(frozen=True)
class Gateway:
    """Envoy and its sidecar, up and running."""

    envoy: Envoy
    sidecar: FileSidecar


@dataclass(frozen=True)
class Stack:
    """A gateway and the replicas behind it, up and running."""

    gateway: Gateway
    replicas: StandInFleet

    async def use(self, strategy: str, flow_control: Mapping[str, object] | None = None) -> None:
        """Change the model's strategy and flow control, and empty the replicas' caches."""
        sidecar = self.gateway.sidecar
        sidecar.write_models(_models(strategy, self.replicas.addresses, flow_control))

        async def in_force() -> bool:
            model = (await sidecar.state())[MODEL]
            is_queueing = flow_control is not None
            return bool(model["strategy"] == strategy and ("queue" in model) == is_queueing)

        await until(in_force, 10, f"{strategy} to be in force")
        await self.replicas.reset()


async def start(cleanup: AsyncExitStack, directory: Path) -> Stack:
    """Start all processes with their files in `directory`; `cleanup` stops them."""
    arguments = ["--model", MODEL, "--time-scale", str(TIME_SCALE)]
    replicas = StandInFleet(REPLICAS, directory, arguments)
    cleanup.push_async_callback(replicas.stop)
    await replicas.start()
    return Stack(await _gateway(cleanup, directory, "PrefixHash", replicas), replicas)


async def start_gateways(
    cleanup: AsyncExitStack, directory: Path, replicas: StandInFleet, shared_state: str = ""
) -> list[Gateway]:
    """Start several gateways with PrefixCache, whose sidecars share their state if there is a URL.

    Their files are in `directory`, which is created.
    """
    arguments = ["--shared-state", shared_state] if shared_state else []
    found = []
    for number in range(GATEWAYS):
        own = directory / str(number)
        own.mkdir(parents=True)
        found.append(await _gateway(cleanup, own, "PrefixCache", replicas, arguments))
    return found


async def _gateway(
    cleanup: AsyncExitStack,
    directory: Path,
    strategy: str,
    replicas: StandInFleet,
    arguments: Sequence[str] = (),
) -> Gateway:
    models = _models(strategy, replicas.addresses)
    sidecar = FileSidecar(models, directory, arguments=arguments)
    cleanup.push_async_callback(sidecar.stop)
    await sidecar.start()
    config = local_configuration(
        envoy_configuration(), EnvoyAddresses(sidecar.listen, replicas.addresses)
    )
    envoy = Envoy(config, directory)
    cleanup.push_async_callback(envoy.stop)
    await envoy.start()
    return Gateway(envoy, sidecar)


def _models(
    strategy: str, addresses: Sequence[str], flow_control: Mapping[str, object] | None = None
) -> dict[str, object]:
    model: dict[str, object] = {
        "name": MODEL,
        "endpoints": list(addresses),
        "loadBalancing": {"strategy": strategy},
    }
    if flow_control is not None:
        model["flowControl"] = dict(flow_control)
    return {"models": [model]}
