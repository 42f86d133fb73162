"""The Envoy configurations that ship with the package.

They live in `envoy/` at the top of the repository. A wheel carries them inside this package.
"""

from __future__ import annotations

from pathlib import Path

RECOMMENDED = "envoy.yaml"
"""File name of the recommended configuration."""

_IN_WHEEL = Path(__file__).parent
_IN_CHECKOUT = _IN_WHEEL.parents[1] / "envoy"


def envoy_configuration(name: str = RECOMMENDED) -> Path:
    """Return the path of a shipped configuration, in an installed wheel and in a checkout alike.

    `name` is a file name, such as `fail-closed.yaml`. Raises FileNotFoundError, which lists the
    shipped names.
    """
    found = {path.name: path for path in envoy_configurations()}
    if name not in found:
        raise FileNotFoundError(f"no Envoy configuration {name!r}: there are {', '.join(found)}")
    return found[name]


def envoy_configurations() -> list[Path]:
    """Return the paths of all shipped configurations, in the order of their names."""
    in_wheel = sorted(_IN_WHEEL.glob("*.yaml"))
    return in_wheel or sorted(_IN_CHECKOUT.glob("*.yaml"))
