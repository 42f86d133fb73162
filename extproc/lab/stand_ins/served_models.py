"""The model names one replica answers to: its base model's and those of its LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from extproc.lab.stand_ins.request_error import RequestError

STAND_IN = "stand-in"
"""What a base model without names is called."""


class ServedModels:
    """Without names of a base model, whatever is not an adapter's name means it."""

    def __init__(self, bases: Sequence[str] = (), adapters: Iterable[str] = ()) -> None:
        self._bases = bases
        self._adapters = {name: f"/adapters/{name}" for name in adapters}

    @property
    def bases(self) -> Sequence[str]:
        """One at least; several are names of the same model."""
        return self._bases or (STAND_IN,)

    @property
    def name(self) -> str:
        """What is meant where a request does not say, and what metrics are labelled with."""
        return self.bases[0]

    @property
    def adapters(self) -> Mapping[str, str]:
        """The path of each by name. Whether its weights are in memory is the engine's business."""
        return self._adapters

    def adapter_of(self, model: str) -> str:
        """The adapter that a request for a model runs with; empty for the base model."""
        if model in self._adapters:
            return model
        if self._bases and model not in self._bases:
            message = f"The model `{model}` does not exist."
            raise RequestError(404, "NotFoundError", message, "model")
        return ""

    def check_new(self, name: str, path: str, in_place: bool) -> None:
        """Whether an adapter may be added; `in_place`: also in place of one of that name."""
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
        """From now on it is served."""
        self._adapters[name] = path

    def remove(self, name: str) -> None:
        """From now on it is unknown."""
        if not name:
            raise _invalid("'lora_name' needs to be provided to unload a LoRA adapter.")
        if self._adapters.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            raise RequestError(404, "NotFoundError", message)


def _invalid(message: str) -> RequestError:
    return RequestError(400, "InvalidUserInput", message)
