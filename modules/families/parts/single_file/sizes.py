"""Whether a model has the size of a published one: its configs then need not be in its file. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from modules.families.parts.single_file.models import CONFIGS_KEY, UNET_PREFIX, configs_of_file, shipped_configs
from modules.families.parts.single_file.record import Configs
from modules.families.registry import published
from modules.formats.checkpoint_header import CheckpointHeader

# The config values that make a model different from the published one; the others do not affect the weights' meaning.
_SHAPING = {
    "unet": (
        *("block_out_channels", "layers_per_block", "down_block_types", "up_block_types", "attention_head_dim"),
        *("cross_attention_dim", "transformer_layers_per_block", "norm_num_groups", "use_linear_projection"),
        *("addition_embed_type", "addition_time_embed_dim", "projection_class_embeddings_input_dim"),
    ),
    "vae": ("block_out_channels", "layers_per_block", "norm_num_groups", "latent_channels", "scaling_factor"),
    "text": (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"),
        *("vocab_size", "max_position_embeddings"),
    ),
}
# diffusers' defaults for missing config values: a loaded model's config has them, a file's often does not.
_SILENT: Mapping[str, Any] = {"transformer_layers_per_block": 1, "use_linear_projection": False}


def configs_to_bring(model: str, configs: Configs) -> str:
    """Return the configs that a file of this model must contain, as JSON by part; empty where the model has the
    published size. Local paths are left out.
    """
    if not is_unusual(model, configs):
        return ""
    own_configs = {part: {k: v for k, v in c.items() if k != "_name_or_path"} for part, c in configs.items()}
    return json.dumps(own_configs, sort_keys=True, default=list)


def is_unusual(model: str, configs: Configs) -> bool:
    """Whether a model has other sizes than the published one, so that its file must contain its configs."""
    shipped = shipped_configs(model)
    return not shipped or any(
        _shaping(configs[part], name) != _shaping(config, name)
        for part, config in shipped.items()
        for name in _SHAPING.get(part, _text_shaping(model, part))
        if name in configs[part] or config.get(name)
    )


def _text_shaping(model: str, part: str) -> tuple[str, ...]:
    """Return the config values that affect a text encoder, with the projection's size where it has a projection."""
    record = published(model).single_file
    place = next((t for t in record.text if t.part == part), None) if record else None
    if place is None:
        return ()
    return (*_SHAPING["text"], "projection_dim") if place.has_projection else _SHAPING["text"]


def _shaping(config: Mapping[str, Any], name: str) -> Any:
    return _plain(config.get(name, _SILENT.get(name)))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def has_published_size(model: str, header: CheckpointHeader) -> bool:
    """Whether a file has the size of its published model: by the configs in its metadata, and by the widths from which
    programs recognise a UNet.
    """
    if CONFIGS_KEY in header.metadata and is_unusual(model, configs_of_file(model, header.shapes, header.metadata)):
        return False
    unet = shipped_configs(model).get("unet", {})
    first = header.shapes.get(f"{UNET_PREFIX}input_blocks.0.0.weight", ())
    widths = (
        (first[0] if len(first) == 4 else 0, unet.get("block_out_channels", [0])[0]),
        (header.second_axis("attn2.to_k.weight", prefix=UNET_PREFIX), unet.get("cross_attention_dim", 0)),
    )
    return all(found == expected for found, expected in widths if found and expected)
