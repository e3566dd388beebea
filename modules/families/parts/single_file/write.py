"""Writes the parts of a model as one file in the original layout: streamed and atomic.

The file contains every tensor of the published files, so that other programs report none missing: beside the weights
the text encoders' position ids, OpenCLIP's logit scale, and the unused last block and projection.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from modules.families.parts.single_file.layouts import PREFIX as TEXT_PREFIX
from modules.families.parts.single_file.layouts import modern_key
from modules.families.parts.single_file.models import CONFIGS_KEY, layouts
from modules.families.parts.single_file.moves import to_original
from modules.families.parts.single_file.prediction import SIDECAR_START, ZERO_SNR_LINE, is_own_sidecar
from modules.families.parts.single_file.record import Configs, PartLayout, SingleFile
from modules.families.parts.single_file.sizes import configs_to_bring
from modules.families.registry import published
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.formats.metadata import CheckpointFacts, checkpoint_metadata
from modules.formats.safetensors_io import PAYLOAD_SHA256, TRAINED, OnWritten, write_safetensors
from modules.system.atomic import write_text
from modules.system.devices import dtype_name
from modules.system.errors import DarkroomError

_PENULTIMATE_LAYERS = 23  # in diffusers' config of a text encoder whose 24th block never runs
_CLIP_LAYERS = (f"{TEXT_PREFIX}encoder.layers.", "encoder.layers.")
_LOGIT_SCALE = math.log(100.0)  # the limit in CLIP's training, which trained models reach

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
    created: datetime | None,
    metadata: Mapping[str, str] | None = None,
    on_written: OnWritten | None = None,
    advice: str = TRAINED,
    beside: Mapping[str, LazyTensor] | None = None,
) -> list[Path]:
    """Write a model as one .safetensors file and return the files written, with its .yaml where it needs one.

    `states` contains each part's tensors under diffusers' names. `metadata` is kept in the file (see
    `checkpoint_metadata`); `created` is when the model was made, None where that is not known. `beside` are tensors of
    networks beside the model, under their names in the file. Raises DarkroomError where a tensor is missing, unknown or
    not finite (`advice` is for the last); an existing file is left unchanged then.
    """
    record = _record(traits.model)
    tensors = {**original_tensors(states, configs, traits), **(beside or {})}
    facts = _facts(states, configs, traits, dtype=dtype, title=title, created=created)
    kept = {n: text for n, text in (metadata or {}).items() if n != CONFIGS_KEY}
    full_metadata = checkpoint_metadata(facts, kept, payload_sha256=PAYLOAD_SHA256)
    if brought := configs_to_bring(traits.model, configs):
        full_metadata[CONFIGS_KEY] = brought
    write_safetensors(path, tensors, full_metadata, dtype=dtype, on_written=on_written, advice=advice)
    return [path, *_write_sidecar(path, record.sidecar(configs, traits.prediction), zero_snr=traits.zero_snr)]


def needs_beside(traits: CheckpointTraits) -> bool:
    """Return whether a single file of such a model has a network beside it, which other programs expect there."""
    return traits.variant in _record(traits.model).beside


def _facts(
    states: States,
    configs: Configs,
    traits: CheckpointTraits,
    *,
    dtype: torch.dtype | None,
    title: str,
    created: datetime | None,
) -> CheckpointFacts:
    record = published(traits.model)
    return CheckpointFacts(
        title=title,
        architecture=record.architecture_of(traits.variant),
        implementation=record.implementation,
        prediction=traits.prediction,
        resolution_px=int(configs["unet"].get("sample_size") or 64) * 8,
        dtypes=(_written_dtype(states, "unet", dtype), _written_dtype(states, "vae", dtype)),
        created=created,
    )


def _written_dtype(states: States, part: str, dtype: torch.dtype | None) -> str:
    """Return the dtype of most numbers of a part: in a file in float8 its vectors are in float16."""
    sizes: Counter[torch.dtype] = Counter()
    for tensor in states.get(part, {}).values():
        sizes[tensor.dtype] += math.prod(tensor.shape)
    return dtype_name(dtype or max(sizes, key=lambda d: (sizes[d], d.itemsize), default=torch.float32))


def _write_sidecar(path: Path, text: str, *, zero_snr: bool) -> list[Path]:
    """Write the .yaml of a checkpoint; an earlier one of ours is removed where the checkpoint needs none."""
    sidecar = path.with_suffix(".yaml")
    if text:
        write_text(sidecar, f"{SIDECAR_START}{text}{ZERO_SNR_LINE if zero_snr else ''}")
        return [sidecar]
    if is_own_sidecar(sidecar):  # of a model that this one replaces: programs would read the wrong prediction type
        sidecar.unlink()
    return []


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
    """Return a part's tensors under the names used in files: CLIP's text layers with "text_model.", the VAE's attention
    as in diffusers 0.12 and later, without buffers.
    """
    if part == "vae":
        return {modern_key(name): tensor for name, tensor in state.items()}
    if not any(name.startswith(_CLIP_LAYERS) for name in state):
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
