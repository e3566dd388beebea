"""Reads a model from any form: a diffusers folder, a repository, a file in the original layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from modules.families.kinds.identify import identify
from modules.families.parts.files import ModelFiles, read_folder
from modules.families.parts.single_file.checkpoint import (
    empty_part,
    load_part,
    load_unet_file,
    load_vae_file,
    open_checkpoint,
)
from modules.families.spec import FamilySpec
from modules.families.vae_path import vae_weights_at
from modules.formats.diffusers_folder import OnBytes, locate
from modules.formats.gguf_header import is_gguf
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root
from modules.system.secrets import HubAccess


def read_model(
    base_model: str,
    spec: FamilySpec,
    dtypes: Mapping[str, torch.dtype],
    *,
    vae_file: str = "",
    unet_file: str = "",
    stays_packed: Callable[[str], bool] = lambda layer: False,
    offline: bool = False,
    hub_cache_dir: str = "",
    hub: HubAccess | None = None,
    on_bytes: OnBytes | None = None,
    without_weights: Collection[str] = (),
) -> ModelFiles:
    """Return the parts of a model, each in its dtype from `dtypes` (default float32).

    `vae_file` names a file or a folder whose VAE replaces the model's own, where it has one, `unet_file` a file whose
    UNet does: the model's own is not read then; `stays_packed` is as in `load_unet_file`. `hub` has the token for a
    download, and `on_bytes(done, total)` reports its progress. Of the parts in `without_weights` only the config is
    read: they are on the meta device. Raises DarkroomError where a file is missing or the model is not of the family.
    """
    path = from_root(base_model)
    if not unet_file and base_model and is_gguf(path):  # a whole model, whose UNet is read as a file of its own is
        unet_file = base_model
    denoiser = next(p for p in spec.parts if p.role == "denoiser")
    replaces_unet = bool(unet_file) and denoiser.name not in without_weights
    without_weights = {*without_weights, denoiser.name} if unet_file else without_weights
    if base_model and path.is_file():
        files = read_single_file(path, base_model, spec, dtypes, without_weights=without_weights)
    else:
        folder = locate(
            base_model,
            parts=[p.name for p in spec.parts if not (unet_file and p.role == "denoiser")],
            offline=offline,
            cache_dir=hub_cache_dir,
            hub=hub,
            on_bytes=on_bytes,
        )
        files = read_folder(folder, base_model, spec, dtypes, without_weights=without_weights)
    if replaces_unet:
        config, dtype = dict(files.parts[denoiser.name].config), dtypes.get(denoiser.name, torch.float32)
        kind = load_factory(denoiser.model_class)
        unet = load_unet_file(from_root(unet_file), kind, config, dtype, stays_packed=stays_packed)
        files = replace(files, parts={**files.parts, denoiser.name: unet})
    autoencoder = next((p for p in spec.parts if p.role == "vae"), None)
    if not vae_file or autoencoder is None or autoencoder.name in without_weights:
        return files
    own = files.parts[autoencoder.name]
    vae = load_vae_file(
        vae_weights_at(from_root(vae_file)), load_factory(autoencoder.model_class), dict(own.config), own.dtype
    )
    return replace(files, parts={**files.parts, autoencoder.name: vae})


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
