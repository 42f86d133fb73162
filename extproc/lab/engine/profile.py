"""How fast an engine is and how much it holds: a small file for each model on each GPU.

The seconds of a step: a base, a share for every token of context in the batch, and for
each request admitted an overhead and its uncached prompt tokens. The files, with where each
figure comes from, are in `profiles/`; `extproc simulate --calibrate` fits one to a table.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from extproc.lab.input_error import InputError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]

_DIRECTORY = Path(__file__).parent / "profiles"


class ProfileError(InputError):
    """There is no such profile, or its file is wrong; says in one line what is."""


@dataclass(frozen=True)
class Profile:
    """The constants of a model on a GPU."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    """For reports."""

    step_base_seconds: Positive
    """Seconds of any step: reading the weights once."""

    seconds_per_context_token: NotNegative
    """Seconds per token of context of each request in the batch: reading its keys and values."""

    admission_seconds: NotNegative
    """Seconds per request admitted in a step."""

    prefill_tokens_per_second: Positive
    """Uncached prompt tokens per second."""

    kv_tokens: Count
    """Tokens whose keys and values fit into the cache."""

    block_size: Count = 16
    """Tokens per block; vLLM's default on GPUs."""

    max_num_seqs: Count = 256
    """Requests in the running batch at most; vLLM's default in the published runs."""

    max_num_batched_tokens: Count = 16_384
    """Tokens computed in one step at most; a longer prompt is computed in chunks. The published
    runs' value."""

    max_loras: Natural = 0
    """Adapters in one batch at most, and so the slots for them on the GPU. 0: LoRA is off."""

    max_cpu_loras: Natural = 0
    """Adapters in host memory at most; those in slots are among them, as in vLLM, so it is as many
    as there are slots at least. 0: just as many, vLLM's default."""

    lora_load_seconds: NotNegative = 0.5
    """Seconds to read an adapter from disk into host memory. Assumed: some 100 MB at the pace of a
    network disk; nothing of it is in the published tables."""

    lora_activate_seconds: NotNegative = 0.01
    """Seconds to copy an adapter from host memory into a slot. Assumed: some 100 MB over PCIe."""

    def __post_init__(self) -> None:
        if self.kv_tokens < self.block_size:
            raise ValueError(f"kv_tokens ({self.kv_tokens}) must be a block's at least")
        if 0 < self.max_cpu_loras < self.max_loras:
            raise ValueError(
                f"max_cpu_loras ({self.max_cpu_loras}) must be at least max_loras "
                f"({self.max_loras}): host memory holds what is in the slots too"
            )
        # As vLLM demands; without it some of a batch would have no token in a step.
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs})"
            )

    @property
    def kv_blocks(self) -> int:
        """Whole blocks that fit into the cache."""
        return self.kv_tokens // self.block_size


def names() -> list[str]:
    """The profiles that come with the laboratory."""
    return sorted(path.stem for path in _DIRECTORY.glob("*.yaml"))


def named(name: str) -> Profile:
    """The profile of this name, or in this file. Raises ProfileError."""
    path = _DIRECTORY / f"{name}.yaml" if name in names() else Path(name)
    if path.suffix != ".yaml":
        raise ProfileError(f"there is no profile {name!r}; there are {', '.join(names())}")
    try:
        return TypeAdapter(Profile).validate_python(_fields(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProfileError(f"{path}: {place or 'profile'}: {first['msg']}") from None


def as_fields(engine: Profile) -> dict[str, Any]:
    """What its file would say, less what it need not."""
    return {
        field.name: value
        for field in fields(engine)
        if (value := getattr(engine, field.name)) != field.default
    }


def _fields(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What the file says, over what the profile says that it is like."""
    said = _read(path)
    like = said.pop("like", None)
    if like is None:
        return said
    # One that comes with the laboratory, or a neighbour.
    other = (_DIRECTORY if like in names() else path.parent) / f"{like}.yaml"
    if other in (path, *seen) or not other.exists():
        raise ProfileError(f"{path}: like: there is no profile {like!r} to start from")
    return {**_fields(other, (path, *seen)), **said}


def _read(path: Path) -> dict[str, Any]:
    try:
        said = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(said, dict):
        raise ProfileError(f"{path}: is no mapping")
    return said


L4_LLAMA_3_1_8B_FP8 = named("l4-llama-3.1-8b-fp8")
"""The replica of KubeAI's published tables."""
