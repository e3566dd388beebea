"""Reads a model from any form: a diffusers folder, a repository, a file in the original layout."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from modules.families.kinds.identify import identify
from modules.families.kinds.vae import vae_weights_at
from modules.families.parts.files import ModelFiles, read_folder
from modules.families.parts.single_file.checkpoint import (
    empty_part,
    load_denoiser_file,
    load_part,
    load_vae_file,
    open_checkpoint,
)
from modules.families.protocol import LoadRequest
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, PartSpec
from modules.formats.diffusers_folder import locate
from modules.formats.gguf_header import is_gguf
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root

logger = logging.getLogger("darkroom.families")


def read_model(request: LoadRequest[FamilySettings], spec: FamilySpec) -> ModelFiles:
    """Return the parts of the requested model, each in its dtype.

    Raises DarkroomError where a file is missing or the model is not of the family.
    """
    name, path = request.base_model, from_root(request.base_model)
    denoiser = spec.denoiser
    is_whole_gguf = not request.denoiser_file and bool(name) and is_gguf(path)
    denoiser_file = name if is_whole_gguf else request.denoiser_file  # of a whole model it is read like a separate file
    unread = {*request.without_weights, denoiser.name} if denoiser_file else request.without_weights
    dtypes = _dtypes_to_read(request, spec)
    if name and path.is_file():
        files = read_single_file(path, name, spec, dtypes, without_weights=unread)
    else:
        folder = locate(
            name,
            parts=[p.name for p in spec.parts if p.name not in unread],
            offline=request.offline,
            cache_dir=request.hub_cache_dir,
            hub=request.hub,
            on_bytes=request.on_bytes,
        )
        files = read_folder(folder, name, spec, dtypes, without_weights=unread)
    if denoiser_file and denoiser.name not in request.without_weights:
        files = _with_denoiser(files, spec, from_root(denoiser_file), request)
    return _with_vae(files, request, spec)


def _dtypes_to_read(request: LoadRequest[FamilySettings], spec: FamilySpec) -> Mapping[str, torch.dtype]:
    """Return the dtypes of the parts, with float32 for a VAE that may overflow in float16: `_with_vae` casts it."""
    careful = [p.name for p in spec.parts if _may_overflow(p, request, spec)]
    return {**request.dtypes, **dict.fromkeys(careful, torch.float32)}


def _may_overflow(part: PartSpec, request: LoadRequest[FamilySettings], spec: FamilySpec) -> bool:
    return spec.latents.overflows_in_float16 and part.role == "vae" and request.dtype_of(part.name) == torch.float16


def _with_denoiser(files: ModelFiles, spec: FamilySpec, path: Path, request: LoadRequest[FamilySettings]) -> ModelFiles:
    denoiser = spec.denoiser
    config, kind = dict(files.parts[denoiser.name].config), load_factory(denoiser.model_class)
    dtype = request.dtype_of(denoiser.name)
    module = load_denoiser_file(path, spec.name, kind, config, dtype, stays_packed=request.stays_packed)
    return replace(files, parts={**files.parts, denoiser.name: module})


def _with_vae(files: ModelFiles, request: LoadRequest[FamilySettings], spec: FamilySpec) -> ModelFiles:
    """Return the files with the VAE that replaces the model's own, and in the dtype it does not overflow in."""
    part = next((p for p in spec.parts if p.role == "vae"), None)
    if part is None:
        return files
    vae = files.parts[part.name]
    if request.vae_file and part.name not in request.without_weights:
        weights = vae_weights_at(from_root(request.vae_file))
        vae = load_vae_file(weights, load_factory(part.model_class), dict(vae.config), vae.dtype)
    if _may_overflow(part, request, spec):
        halve_if_safe(vae, otherwise=request.fallback_dtype, name=request.base_model)
    return replace(files, parts={**files.parts, part.name: vae})


def halve_if_safe(vae: Any, *, otherwise: torch.dtype, name: str) -> None:
    """Cast a float32 VAE to float16, or to another dtype if its config marks it as overflowing in float16.

    SDXL's own VAE overflows and decodes black images; fixed VAEs have `force_upcast` false.
    """
    if vae.config.force_upcast:
        dtype = str(otherwise).removeprefix("torch.")
        logger.warning("The VAE of %s overflows in float16 according to its config; it is used in %s.", name, dtype)
        vae.to(otherwise)
    else:
        vae.half()


def read_single_file(
    path: Path,
    name: str,
    spec: FamilySpec,
    dtypes: Mapping[str, torch.dtype],
    *,
    without_weights: Collection[str] = (),
) -> ModelFiles:
    """Return the parts of a .safetensors or .ckpt file in the original layout; `name` is the user's name for it.

    Needs no network: the configs and the vocabulary are bundled. Of the parts in `without_weights` no tensor is read.
    Raises DarkroomError, with a description of the file, where it is not a whole model of the family.
    """
    kind = identify(path)
    if not kind.is_model:
        raise DarkroomError(f"{name} is not a whole model. {kind.sentence}", advice="Choose a checkpoint.")
    if kind.family != spec.name:
        raise DarkroomError(f"{name} is not {spec.label}. {kind.sentence}", advice="Choose the model's family.")
    checkpoint = open_checkpoint(path, kind)

    def read(part: str, kind: Any) -> Any:
        if part in without_weights:
            return empty_part(kind, checkpoint.configs[part])
        return load_part(checkpoint, part, kind, dtypes.get(part, torch.float32))

    parts = {p.name: read(p.name, load_factory(p.model_class)) for p in spec.parts}
    return ModelFiles(name, parts, checkpoint.scheduler_config(), tokenizers={})
