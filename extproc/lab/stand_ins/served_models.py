"""The model names of one replica: those of its base model and of its LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from extproc.lab.stand_ins.request_error import RequestError

STAND_IN = "stand-in"
"""Name of a base model without names."""


class ServedModels:
    """The served names. If the base model has none, every other name than an adapter's means it."""

    def __init__(self, bases: Sequence[str] = (), adapters: Iterable[str] = ()) -> None:
        self._bases = bases
        self._adapters = {name: f"/adapters/{name}" for name in adapters}

    @property
    def bases(self) -> Sequence[str]:
        """Names of the base model, at least one."""
        return self._bases or (STAND_IN,)

    @property
    def name(self) -> str:
        """The default model of requests, and the label of metrics."""
        return self.bases[0]

    @property
    def adapters(self) -> Mapping[str, str]:
        """Paths of the adapters by name. The engine decides which weights are in memory."""
        return self._adapters

    def adapter_of(self, model: str) -> str:
        """Return the adapter for a model name; empty for the base model. Raises RequestError."""
        if model in self._adapters:
            return model
        if self._bases and model not in self._bases:
            message = f"The model `{model}` does not exist."
            raise RequestError(404, "NotFoundError", message, "model")
        return ""

    def check_new(self, name: str, path: str, in_place: bool) -> None:
        """Raise RequestError if an adapter cannot be added; `in_place` to allow a known name."""
        if not name or not path:
            raise _invalid("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._bases:
            raise _invalid(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self._adapters and not in_place:
            raise _invalid(
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True."
            )

    def add(self, name: str, path: str) -> None:
        """Serve an adapter."""
        self._adapters[name] = path

    def remove(self, name: str) -> None:
        """Stop serving an adapter. Raises RequestError."""
        if not name:
            raise _invalid("'lora_name' needs to be provided to unload a LoRA adapter.")
        if self._adapters.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            raise RequestError(404, "NotFoundError", message)


def _invalid(message: str) -> RequestError:
    return RequestError(400, "InvalidUserInput", message)
