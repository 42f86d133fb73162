"""A Llama model small enough for a CPU, with LoRA adapters; all weights are random.

    .vllm/bin/python -P extproc/lab/real_vllm/tiny_llama.py DIRECTORY ADAPTER...

This script runs in vLLM's environment (see `make e2e-vllm`), because the rest of the package must
not depend on its libraries. It needs -P, because some modules in this directory have names of the
standard library. The generated text is noise, but the engine does real work for it: it tokenizes
prompts, and caches prefixes block by block.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

LAYERS = 2
HIDDEN = 128
HEADS = 4
KV_HEADS = 2
HEAD = HIDDEN // HEADS
INTERMEDIATE = 256
POSITIONS = 16_384
"""Most tokens of prompt and output together."""

BEGIN, END = "<s>", "</s>"
VOCABULARY = 256 + len((BEGIN, END))

RANK = 8
"""Rank of the adapters' matrices, at most the engines' --max-lora-rank."""

SPREAD = 0.05
"""Standard deviation of the weights, large enough that outputs depend on prompts and adapters."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""Characters of outputs. The end token is not among them, so outputs have the full length."""

NEVER = -1000.0
"""Weight of the constant (see `_weights`) in the logits of all other tokens."""

# Each message is a line with its role and its text. The output follows the last role.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

Weights: TypeAlias = dict[str, Any]


def build(directory: Path, adapters: Sequence[str]) -> None:
    """Write the model to DIRECTORY/model and each adapter to a directory of its name."""
    model = directory / "model"
    model.mkdir(parents=True)
    _write_tokenizer(model)
    _write_json(model / "config.json", _config())
    _save(model / "model.safetensors", _weights(numpy.random.default_rng(0)))
    for seed, name in enumerate(adapters, start=1):
        adapter = directory / name
        adapter.mkdir()
        _write_json(adapter / "adapter_config.json", _adapter_config())
        weights = _adapter_weights(numpy.random.default_rng(seed))
        _save(adapter / "adapter_model.safetensors", weights)


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "torch_dtype": "float32",
    }


def _write_tokenizer(directory: Path) -> None:
    """Write a byte-level BPE tokenizer without merges, in which each token is one byte."""
    tokenizer = Tokenizer(models.BPE(vocab=_bytes(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (BEGIN, END)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(directory / "tokenizer_config.json", settings)


def _bytes() -> dict[str, int]:
    """Return the token id of each byte."""
    return {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def _weights(rng: numpy.random.Generator) -> Weights:
    """Return random weights, except for the first dimension, a constant that no layer changes.

    The constant replaces the bias that a Llama's logits lack. It limits outputs to `LETTERS`.
    """
    embedding = _matrix(rng, VOCABULARY, HIDDEN)
    embedding[:, 0] = 1
    head = _matrix(rng, VOCABULARY, HIDDEN)
    head[:, 0] = NEVER
    head[[_bytes()[letter] for letter in LETTERS], 0] = 0
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": _ones(),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = _ones()
        for name, (rows, columns) in (_ATTENTION | _FEED_FORWARD).items():
            weights[f"{prefix}{name}.weight"] = _matrix(rng, rows, columns)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"{prefix}{name}.weight"][0] = 0
    return weights


_ATTENTION = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
}
# The output projection is not adapted, because that would change the constant.
_ADAPTED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_FEED_FORWARD = {
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}


def _adapter_config() -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [name.rpartition(".")[2] for name in _ADAPTED],
    }


def _adapter_weights(rng: numpy.random.Generator) -> Weights:
    weights = {}
    for layer in range(LAYERS):
        for name in _ADAPTED:
            rows, columns = _ATTENTION[name]
            module = f"base_model.model.model.layers.{layer}.{name}"
            weights[f"{module}.lora_A.weight"] = _matrix(rng, RANK, columns)
            weights[f"{module}.lora_B.weight"] = _matrix(rng, rows, RANK)
    return weights


def _matrix(rng: numpy.random.Generator, rows: int, columns: int) -> Any:
    return (rng.standard_normal((rows, columns)) * SPREAD).astype(numpy.float32)


def _ones() -> Any:
    return numpy.ones(HIDDEN, dtype=numpy.float32)


def _save(path: Path, weights: Weights) -> None:
    save_file(weights, path, metadata={"format": "pt"})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2:])
