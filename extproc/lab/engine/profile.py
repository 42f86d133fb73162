"""Engine profiles: the speed and the capacity of a model on a GPU.

The duration of a step is the sum of a base, a share for each token of context in the batch, an
overhead for each admitted request, and the time for its uncached prompt tokens. The files in
`profiles/` name the source of each number. `extproc simulate --calibrate` fits a profile to a
table.
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
    """Raised for an unknown profile or an invalid file, with a message of one line."""


@dataclass(frozen=True)
class Profile:
    """The parameters of a model on a GPU."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    """Name in reports."""

    step_base_seconds: Positive
    """Seconds of each step: the GPU reads the weights once."""

    seconds_per_context_token: NotNegative
    """Seconds per context token of the batch: the GPU reads its keys and values."""

    admission_seconds: NotNegative
    """Seconds per admitted request."""

    prefill_tokens_per_second: Positive
    """Uncached prompt tokens per second."""

    kv_tokens: Count
    """Tokens whose keys and values fit into the cache."""

    block_size: Count = 16
    """Tokens per block; vLLM's default on GPUs."""

    host_kv_tokens: Natural = 0
    """Tokens whose keys and values fit into host memory, too. 0: no KV offloading, vLLM's
    default."""

    host_tokens_per_second: Positive = 190_000.0
    """Tokens that are loaded from host memory per second. This is 25 GB/s, about what PCIe 4.0 with
    16 lanes reaches, with the 128 KiB a token of Llama 3.1 8B in 16 bits. Like prompt tokens, they
    make the step longer; vLLM loads them while other steps run."""

    max_num_seqs: Count = 256
    """Most requests in the running batch; vLLM's default in the published runs."""

    max_num_batched_tokens: Count = 16_384
    """Most tokens that a step computes; a longer prompt is computed in chunks. This is the value
    of the published runs."""

    chunked_prefill: bool = True
    """False: a step computes either whole prompts or decodes, and prompts come first, as in vLLM V0
    with `--no-enable-chunked-prefill`. A prompt of any length is then computed in one step."""

    max_prompt_tokens_with_decoding: Natural = 0
    """Most prompt tokens in a step that also decodes, which gives decoding priority; 0: no limit.
    vLLM's `long_prefill_token_threshold` and SGLang's chunk size have a similar effect. Only used
    with chunked prefill."""

    max_loras: Natural = 0
    """Most adapters in one batch, which is the number of slots on the GPU. 0 turns LoRA off."""

    max_cpu_loras: Natural = 0
    """Most adapters in host memory, at least `max_loras`: as in vLLM, those in slots are included.
    0 means `max_loras`, vLLM's default."""

    lora_load_seconds: NotNegative = 0.5
    """Seconds to read an adapter from disk into host memory. This is an assumption: 100 MB from a
    network disk. The published tables do not cover it."""

    lora_activate_seconds: NotNegative = 0.01
    """Seconds to copy an adapter from host memory into a slot. This is an assumption: 100 MB over
    PCIe."""

    def __post_init__(self) -> None:
        if self.kv_tokens < self.block_size:
            raise ValueError(
                f"kv_tokens ({self.kv_tokens}) must be at least one block ({self.block_size})"
            )
        if 0 < self.max_cpu_loras < self.max_loras:
            raise ValueError(
                f"max_cpu_loras ({self.max_cpu_loras}) must be at least max_loras "
                f"({self.max_loras}): host memory also holds the adapters in slots"
            )
        # vLLM requires this too: otherwise some requests of a batch would get no token in a step.
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs})"
            )

    @property
    def kv_blocks(self) -> int:
        """Number of whole blocks in the cache."""
        return self.kv_tokens // self.block_size

    @property
    def host_blocks(self) -> int:
        """Number of whole blocks in host memory."""
        return self.host_kv_tokens // self.block_size


def names() -> list[str]:
    """Return the names of the profiles that ship with the laboratory."""
    return sorted(path.stem for path in _DIRECTORY.glob("*.yaml"))


def named(name: str) -> Profile:
    """Return the profile with this name, or the one in this file. Raises ProfileError."""
    path = _DIRECTORY / f"{name}.yaml" if name in names() else Path(name)
    if path.suffix != ".yaml":
        raise ProfileError(f"unknown profile {name!r}: known profiles are {', '.join(names())}")
    try:
        return TypeAdapter(Profile).validate_python(_fields(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProfileError(f"{path}: {place or 'profile'}: {first['msg']}") from None


def as_fields(engine: Profile) -> dict[str, Any]:
    """Return the fields of a profile's file, without those that have their default."""
    return {
        field.name: value
        for field in fields(engine)
        if (value := getattr(engine, field.name)) != field.default
    }


def _fields(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the fields of a file, merged over those of the profile that `like` names."""
    own = _read(path)
    like = own.pop("like", None)
    if like is None:
        return own
    # A shipped profile, or a file in the same directory.
    other = (_DIRECTORY if like in names() else path.parent) / f"{like}.yaml"
    if other in (path, *seen) or not other.exists():
        raise ProfileError(f"{path}: like: unknown profile {like!r}")
    return {**_fields(other, (path, *seen)), **own}


def _read(path: Path) -> dict[str, Any]:
    try:
        own = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(own, dict):
        raise ProfileError(f"{path}: must be a mapping of fields")
    return own


L4_LLAMA_3_1_8B_FP8 = named("l4-llama-3.1-8b-fp8")
"""The profile of the replicas in KubeAI's published tables."""
