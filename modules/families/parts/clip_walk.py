"""The memory walk of a CLIP text encoder (Radford et al. 2021), as transformers computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.memory.tape import Array
from modules.memory.walk import Walk

Config = Mapping[str, Any]


def clip_pass(walk: Walk, config: Config, *, prompts: int, has_projection: bool) -> Array:
    """Return the states of chunks of tokens (N, 77, D); includes the projection of the pooled state."""
    return walk.whole(lambda: _run(walk, config, prompts, has_projection))


def _run(walk: Walk, config: Config, prompts: int, has_projection: bool) -> Array:
    width, tokens = int(config["hidden_size"]), int(config["max_position_embeddings"])
    words = walk.embedding("embeddings.token_embedding", (int(config["vocab_size"]), width), prompts, tokens)
    places = walk.embedding("embeddings.position_embedding", (tokens, width), 1, tokens)
    x = walk.add(words, places)
    for index in range(int(config["num_hidden_layers"])):
        path = f"encoder.layers.{index}"
        x = walk.block(path, lambda a, path=path: _layer(walk, config, path, a), x, is_transformer=True)
    x = walk.layer_norm("final_layer_norm", x)
    if has_projection:
        pooled = x.view(prompts, width)
        walk.linear("text_projection", pooled, int(config["projection_dim"]), bias=False)
    return x


def _layer(walk: Walk, config: Config, path: str, x: Array) -> Array:
    width = x.shape[-1]
    normed = walk.layer_norm(f"{path}.layer_norm1", x)
    query, key, value = (walk.linear(f"{path}.self_attn.{n}_proj", normed, width) for n in "qkv")
    del normed
    attended = walk.attention(query, key, value, heads=int(config["num_attention_heads"]))
    x = walk.add(x, walk.linear(f"{path}.self_attn.out_proj", attended, width))
    inner = walk.linear(f"{path}.mlp.fc1", walk.layer_norm(f"{path}.layer_norm2", x), int(config["intermediate_size"]))
    if config.get("hidden_act") == "quick_gelu":  # an input times a sigmoid of it: both are kept
        inner = walk.product(inner, walk.copy(inner))
    else:
        inner = walk.activation(inner)
    return walk.add(x, walk.linear(f"{path}.mlp.fc2", inner, width))
