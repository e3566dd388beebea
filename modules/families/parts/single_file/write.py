"""Writes the parts of a model as one file in the original layout: streamed and atomic.

The file contains every tensor of the published files, so that other programs report none missing: beside the weights
the text encoders' position ids, OpenCLIP's logit scale, and the unused last block and projection.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from modules.families.parts.single_file.clip_layout import PREFIX as TEXT_PREFIX
from modules.families.parts.single_file.models import CONFIGS_KEY, layouts, shipped_configs
from modules.families.parts.single_file.moves import to_original
from modules.families.parts.single_file.record import Configs, PartLayout, SingleFile
from modules.families.parts.single_file.vae_layout import modern_key
from modules.families.registry import published
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.formats.metadata import CheckpointFacts, checkpoint_metadata
from modules.formats.safetensors_io import PAYLOAD_SHA256, OnWritten, write_safetensors
from modules.system.atomic import write_text
from modules.system.dtypes import dtype_name
from modules.system.errors import DarkroomError

_PENULTIMATE_LAYERS = 23  # in diffusers' config of a text encoder whose 24th block never runs
_LOGIT_SCALE = math.log(100.0)  # the limit in CLIP's training, which trained models reach
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

States = Mapping[str, Mapping[str, LazyTensor]]


@dataclass(frozen=True, slots=True)
class CheckpointTraits:
    """The description of a checkpoint beyond its weights. `model` is the name of a published model."""

    model: str
    prediction: str = "epsilon"
    zero_snr: bool = False
    variant: str = ""


def write_checkpoint(
    path: Path,
    states: States,
    configs: Configs,
    traits: CheckpointTraits,
    *,
    dtype: torch.dtype | None,
    title: str,
    created: datetime,
    metadata: Mapping[str, str] | None = None,
    on_written: OnWritten | None = None,
) -> list[Path]:
    """Write a model as one .safetensors file and return the files written, with its .yaml where it needs one.

    `states` contains each part's tensors under diffusers' names; `metadata` is added to the file's own. Raises
    DarkroomError where a tensor is missing, unknown or not finite; an existing file is left unchanged then.
    """
    record = _record(traits.model)
    tensors = original_tensors(states, configs, traits)
    written = dtype or max((t.dtype for t in states["unet"].values()), key=lambda d: d.itemsize)
    facts = CheckpointFacts(
        title=title,
        architecture=published(traits.model).architecture_of(traits.variant),
        implementation=published(traits.model).implementation,
        prediction=traits.prediction,
        resolution_px=int(configs["unet"].get("sample_size") or 64) * 8,
        dtype=dtype_name(written),
        created=created,
    )
    full_metadata = dict(metadata or {}) | checkpoint_metadata(facts, payload_sha256=PAYLOAD_SHA256)
    if brought := configs_to_bring(traits.model, configs):
        full_metadata[CONFIGS_KEY] = brought
    write_safetensors(path, tensors, full_metadata, dtype=dtype, on_written=on_written)
    text = record.sidecar(configs, traits.prediction)
    if not text:
        return [path]
    sidecar = path.with_suffix(".yaml")
    write_text(sidecar, text)
    return [path, sidecar]


def original_tensors(states: States, configs: Configs, traits: CheckpointTraits) -> dict[str, LazyTensor]:
    """Return a model's tensors in the original layout, including the unused tensors of the published files.

    Raises DarkroomError where a part has a missing or an unknown tensor.
    """
    tensors: dict[str, LazyTensor] = {}
    for part, layout in layouts(traits.model, configs).items():
        state = file_state(part, states.get(part, {}))
        require_keys(part, {s.key for s in layout.slots}, state)
        found = to_original(layout.slots, state)
        found |= _idle_tensors(layout, configs[part], found)
        tensors |= {f"{layout.prefix}{name}": tensor for name, tensor in found.items()}
    if _record(traits.model).velocity_tensors and traits.prediction == "v_prediction":
        tensors["v_pred"] = lazy(torch.tensor([]))
        if traits.zero_snr:
            tensors["ztsnr"] = lazy(torch.tensor([]))
    return tensors


def _record(model: str) -> SingleFile:
    record = published(model).single_file
    if record is None:
        raise DarkroomError(
            f"{published(model).label} cannot be saved as a single file.", advice="Save it as a diffusers folder."
        )
    return record


def file_state(part: str, state: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return a part's tensors under the names used in files: text layers with "text_model.", the VAE's attention as in
    diffusers 0.12 and later, without buffers.
    """
    if part == "vae":
        return {modern_key(name): tensor for name, tensor in state.items()}
    if not part.startswith("text_encoder"):
        return dict(state)
    kept = {n: t for n, t in state.items() if not n.endswith("position_ids")}
    outside = (TEXT_PREFIX, "text_projection.")
    return {n if n.startswith(outside) else f"{TEXT_PREFIX}{n}": t for n, t in kept.items()}


def require_keys(part: str, wanted: set[str], state: Iterable[str]) -> None:
    """Raise DarkroomError where a part's tensors are not exactly the wanted ones."""
    there = set(state)
    if missing := sorted(wanted - there):
        raise DarkroomError(
            f"{len(missing)} of the {len(wanted)} weights of the {part} are missing; the first is {missing[0]}. "
            "Nothing was saved."
        )
    if extra := sorted(there - wanted):
        raise DarkroomError(
            f"The {part} has {len(extra)} weights that do not match its config; the first is {extra[0]}. Nothing was "
            "saved."
        )


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


def _idle_tensors(
    layout: PartLayout, config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]
) -> dict[str, LazyTensor]:
    if not layout.name.startswith("text_encoder"):
        return {}
    if not layout.is_open_clip:
        positions = torch.arange(int(config["max_position_embeddings"]))[None]
        return {f"{TEXT_PREFIX}embeddings.position_ids": lazy(positions)}
    dtype = tensors["ln_final.weight"].dtype
    idle = {"logit_scale": lazy(torch.tensor(_LOGIT_SCALE, dtype=dtype))}
    if "text_projection" not in tensors:
        width = int(config["hidden_size"])
        idle["text_projection"] = LazyTensor((width, width), dtype, lambda: torch.eye(width, dtype=dtype))
    if int(config["num_hidden_layers"]) == _PENULTIMATE_LAYERS:
        last = f"transformer.resblocks.{_PENULTIMATE_LAYERS - 1}."
        more = f"transformer.resblocks.{_PENULTIMATE_LAYERS}."
        idle |= {n.replace(last, more): t for n, t in tensors.items() if n.startswith(last)}
    return idle
