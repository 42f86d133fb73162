"""Commands outside the data path, which must not import them: found by entry points."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from extproc.commands.console import complain

DISTRIBUTION = "extproc-router"
"""Name of this package on a package index."""

_PURPOSES: Mapping[str, str] = MappingProxyType(
    {
        "demo": "compare the strategies under chat traffic",
        "load": "send a workload to a server, and measure the responses",
        "run": "start Envoy, the sidecar and stand-in vLLM replicas",
        "simulate": "simulate a fleet of vLLM engines",
    }
)


def extensions() -> dict[str, EntryPoint]:
    """Return the commands by their names, in the order of their names."""
    # Two installed distributions may register the same command: one of them wins.
    found = {one.name: one for one in entry_points(group="extproc.commands")}
    return dict(sorted(found.items()))


def summary(extension: EntryPoint) -> str:
    """Return a line for lists of commands, without importing the command."""
    purpose = _PURPOSES.get(extension.name, f"see extproc {extension.name} --help")
    origin = ", ".join(extension.extras) or _requirement(extension)
    return f"{purpose} ({'extra: ' if extension.extras else 'from '}{origin})"


def run_extension(extension: EntryPoint, given: Sequence[str]) -> int:
    """Run a command with the arguments after its name; return its exit code.

    A missing library of the command's extra is reported in one line, and so is a missing module
    of the command itself: the image has the metadata of these commands, but not their code.
    """
    try:
        run: Callable[[Sequence[str]], int] = extension.load()
        return run(given)
    except ModuleNotFoundError as error:
        missing = error.name or "extproc"
        if missing != "extproc" and f"{extension.module}.".startswith(f"{missing}."):
            return complain(
                f"extproc {extension.name}: this installation does not include the command: "
                f"pip install '{_requirement(extension)}'"
            )
        if missing.startswith("extproc"):
            raise
        return complain(
            f"extproc {extension.name}: {error.name} is not installed: this command needs "
            f"{_requirement(extension)}{_hint(extension)}"
        )


def extension_parser(extension: EntryPoint) -> ArgumentParser | None:
    """Return the result of `parser` in the command's module; None if a library is missing."""
    try:
        module = import_module(extension.module)
    except ModuleNotFoundError:
        return None
    create: Callable[[], ArgumentParser] | None = getattr(module, "parser", None)
    return None if create is None else create()


def _requirement(extension: EntryPoint) -> str:
    """Return what installs a command, such as `extproc-router[lab]`."""
    distribution = extension.dist.name if extension.dist else DISTRIBUTION
    return f"{distribution}[{','.join(extension.extras)}]" if extension.extras else distribution


def _hint(extension: EntryPoint) -> str:
    if not extension.extras:
        return ""
    return f" (in a checkout: pip install '.[{','.join(extension.extras)}]')"
