"""Writes the parts of a model as one file in the original layout: streamed and atomic.

The file contains every tensor of the published files, also the ones that are not weights, so that other programs report
none missing. Parts of the family that its single files do not have are not written.

In scaled float8, as ComfyUI reads it, the matrices of the denoiser are in float8 with a scale each; what is never
quantized, norms and biases stay in float16 (`modules/formats/float8.py`). Only files with the denoiser alone are
written so: the programs that read checkpoints with all parts read plain float8.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import torch

from modules.families.model_class import ModelClass
from modules.families.parts.single_file.models import CONFIGS_KEY, layouts, single_file_of
from modules.families.parts.single_file.moves import to_original
from modules.families.parts.single_file.prediction import SIDECAR_START, ZERO_SNR_LINE, is_own_sidecar
from modules.families.parts.single_file.record import Configs
from modules.families.parts.single_file.sizes import configs_to_bring
from modules.families.registry import FAMILIES, files_of, published_model
from modules.formats.float8 import FLOAT8, in_scaled_float8, takes_float8
from modules.formats.float8_scales import mark_of_scales
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.formats.metadata import CheckpointFacts, checkpoint_metadata
from modules.formats.safetensors_io import PAYLOAD_SHA256, TRAINED, OnWritten, write_safetensors
from modules.system.atomic import write_text
from modules.system.devices import dtype_name
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory


def require_scalable(model: str) -> None:
    """Raise DarkroomError if files of a published model are not written in scaled float8."""
    family = published_model(model).family
    if not files_of(family).has_denoiser_alone:
        raise DarkroomError(
            "Scaled float8 is for single files with a transformer alone; files of "
            f"{published_model(model).label} contain all parts.",
            advice="Choose float16 or bfloat16.",
        )


def to_scaled_float8(model: str, configs: Configs, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return the tensors of a model's single file, by their names there, in scaled float8.

    A matrix with the weights of several layers has one scale. ComfyUI computes with it in 16 bits where the activations
    of a model are too large for float8, as those of Z-Image's MLPs are. Raises DarkroomError as `require_scalable`.
    """
    require_scalable(model)
    part = FAMILIES[published_model(model).family].denoiser
    layout = layouts(model, configs)[part.name]
    matrices: dict[str, bool] = {}
    for slot in layout.slots:
        name = f"{layout.prefix}{slot.original}"
        shape = tensors[name].shape
        is_weight = len(shape) == 2 and name.endswith(".weight")  # not in_proj_weight: no program looks for its scale
        takes = is_weight and takes_float8(slot.key, shape, part.model.never_quantized)
        matrices[name] = matrices.get(name, True) and takes
    mark, num_values = mark_of_scales(layout.prefix, exact_products=part.model.overflows_in_float16)
    written = in_scaled_float8(tensors, {name for name, takes in matrices.items() if takes})
    return {**written, mark: lazy(torch.zeros(num_values).to(FLOAT8))}


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
    companions: Mapping[str, LazyTensor] | None = None,
    is_scaled_float8: bool = False,
) -> list[Path]:
    """Write a model as one .safetensors file and return the files written, with its .yaml where it needs one.

    `states` contains each part's tensors under diffusers' names. `metadata` is kept in the file (see
    `checkpoint_metadata`); `created` is when the model was made, None where that is not known. `companions` are the
    tensors of further networks, under their names in the file. With `is_scaled_float8`, `dtype` must be None. Raises
    DarkroomError if a tensor is missing, unknown or not finite (`advice` is for the last), or the model has no file
    in scaled float8; an existing file is left unchanged then.
    """
    record = single_file_of(traits.model)
    tensors = {**original_tensors(states, configs, traits), **(companions or {})}
    if is_scaled_float8:
        tensors = to_scaled_float8(traits.model, configs, tensors)
    facts = _facts(states, configs, traits, dtype=dtype, title=title, created=created)
    kept = {n: text for n, text in (metadata or {}).items() if n != CONFIGS_KEY}
    full_metadata = checkpoint_metadata(facts, kept, payload_sha256=PAYLOAD_SHA256)
    if brought := configs_to_bring(traits.model, configs):
        full_metadata[CONFIGS_KEY] = brought
    write_safetensors(path, tensors, full_metadata, dtype=dtype, on_written=on_written, advice=advice)
    return [path, *_write_sidecar(path, record.sidecar(configs, traits.prediction), zero_snr=traits.zero_snr)]


def needs_companions(traits: CheckpointTraits) -> bool:
    """Return whether a single file of such a model has a further network, which other programs expect there."""
    return traits.variant in single_file_of(traits.model).companions


def _facts(
    states: States,
    configs: Configs,
    traits: CheckpointTraits,
    *,
    dtype: torch.dtype | None,
    title: str,
    created: datetime | None,
) -> CheckpointFacts:
    record = published_model(traits.model)
    spec = FAMILIES[record.family]
    denoiser, side = spec.denoiser.name, configs[spec.denoiser.name].get("sample_size")
    of_part = partial(_written_dtype, states, dtype=dtype)
    is_whole = {denoiser, "vae"} <= layouts(traits.model, configs).keys()
    return CheckpointFacts(
        title=title,
        architecture=record.architecture_of(traits.variant),
        implementation=record.implementation,
        prediction=traits.prediction,
        resolution_px=spec.latents.px(int(side)) if side else spec.default_resolution_px,
        dtypes=(of_part(denoiser), of_part("vae")) if is_whole else ("", ""),
        created=created,
    )


def _written_dtype(states: States, part: str, *, dtype: torch.dtype | None) -> str:
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

    Raises DarkroomError if a part has a missing or an unknown tensor.
    """
    parts = {p.name: p for p in FAMILIES[published_model(traits.model).family].parts}
    tensors: dict[str, LazyTensor] = {}
    for part, layout in layouts(traits.model, configs).items():
        state = file_state(parts[part].model, states.get(part, {}))
        require_keys(parts[part].label, {s.key for s in layout.slots}, state)
        original = to_original(layout.slots, state)
        if layout.unused_tensors:
            original |= load_factory(layout.unused_tensors)(configs[part], original)
        tensors |= {f"{layout.prefix}{name}": tensor for name, tensor in original.items()}
    if single_file_of(traits.model).velocity_tensors and traits.prediction == "v_prediction":
        tensors["v_pred"] = lazy(torch.tensor([]))
        if traits.zero_snr:
            tensors["ztsnr"] = lazy(torch.tensor([]))
    return tensors


def file_state(model: ModelClass, state: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return the tensors of a part of a class under the names that files have for them, without buffers."""
    key_of: Callable[[str], str] = str if model.inside is None else model.inside.own_name
    if model.file_key:
        key_of = load_factory(model.file_key)
    return {key: tensor for name, tensor in state.items() if (key := key_of(name))}


def require_keys(label: str, wanted: set[str], state: Iterable[str]) -> None:
    """Raise DarkroomError if the tensors of a part are not exactly the wanted ones."""
    there = set(state)
    if missing := sorted(wanted - there):
        raise DarkroomError(
            f"{len(missing)} of the {len(wanted)} weights of the {label} are missing; the first is {missing[0]}. "
            "Nothing was saved."
        )
    if extra := sorted(there - wanted):
        raise DarkroomError(
            f"The {label} has {len(extra)} weights that do not match its config; the first is {extra[0]}. Nothing was "
            "saved."
        )
