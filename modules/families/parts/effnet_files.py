"""Reads the autoencoder of a family with an EfficientNet: the parts of its decoder's folder, and the encoder's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch

from modules.families.parts.efficient_net import stages_of
from modules.families.parts.effnet_autoencoder import EffNetAutoencoder
from modules.families.parts.files import ModelFiles, locate_for
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.protocol import LoadRequest
from modules.families.registry import published_model
from modules.families.settings import FamilySettings
from modules.formats.diffusers_folder import read_part
from modules.formats.repository import MissingModelError
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError
from modules.system.paths import from_root

EFFNET_FILE = "effnet_encoder.safetensors"
"""The file of the encoder alone in a folder."""
_IN_FILE = "effnet_state_dict."  # before its names in the published files of stage B


@dataclass(frozen=True, slots=True)
class AutoencoderSource:
    """Where a run's autoencoder is: its class, and the classes of the parts in its decoder's folder, by name there.

    `decoder` is that folder, or a repository. `encoder` is a file of the encoder, or the folder or repository with one
    of `encoder_files`; if it is empty, the decoder's has it. `in_base` are the names of the decoder's parts in the
    folder of a base model, where they differ.
    """

    family: str
    kind: type[EffNetAutoencoder]
    classes: Mapping[str, Any]
    decoder: str
    encoder: str
    encoder_files: tuple[str, ...] = (EFFNET_FILE,)
    in_base: Mapping[str, str] = field(default_factory=dict)

    def name_in(self, folder: Path, part: str) -> str:
        """Return the name of a part in a folder, of the decoder or of a base model that has all."""
        other = self.in_base.get(part, part)
        return other if (folder / other).is_dir() else part


def autoencoder_of(
    source: AutoencoderSource, request: LoadRequest[FamilySettings], base: ModelFiles, dtype: torch.dtype
) -> Any:
    """Return the autoencoder in a dtype; the folder of `base`, the base model, may have its parts.

    For a run that neither encodes nor decodes it has the published shape, and no weights. Raises DarkroomError if a
    file is missing, or has the weights of something else.
    """
    if "vae" in request.without_weights:
        module = empty_part(source.kind, published_model(source.family).shipped_configs()["vae"])
    else:
        module = _read(source, request, base, dtype)
    return module.eval().requires_grad_(False)


def _read(source: AutoencoderSource, request: LoadRequest[FamilySettings], base: ModelFiles, dtype: torch.dtype) -> Any:
    folder = _decoder_folder(source, request, base)
    tensors = _encoder_tensors(_encoder_file(source, request, folder))
    parts = {
        name: read_part(folder, source.name_in(folder, name), kind, dtype) for name, kind in source.classes.items()
    }
    try:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        latent_channels, width, *_ = shapes["mapper.0.weight"]
        stages = [astuple(stage) for stage in stages_of(shapes)]
        sizes = {"stages": stages, "width": width, "latent_channels": latent_channels}
        module = empty_part(source.kind, {name: _config(part) for name, part in parts.items()} | sizes)
        module.effnet.load_state_dict({n: _cast(tensor, dtype) for n, tensor in tensors.items()}, assign=True)
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        label = published_model(source.family).label
        raise DarkroomError(
            f"The EfficientNet encoder does not have the weights of {label}'s.",
            advice=f"Choose the published file of {label}, or reset its field.",
        ) from error
    module.put_parts(parts)
    return module


def _decoder_folder(source: AutoencoderSource, request: LoadRequest[FamilySettings], base: ModelFiles) -> Path:
    """Return the folder of the decoder: the base model's own, if it is there, or the one in the settings."""
    names = [source.in_base.get(part, part) for part in source.classes]
    if base.folder is not None and all((base.folder / name).is_dir() for name in names):
        return base.folder
    try:
        return locate_for(request, source.decoder, tuple(source.classes), source.encoder_files)
    except MissingModelError as error:
        raise DarkroomError(
            f"The decoder {source.decoder!r} is not on this machine, and could not be downloaded.",
            advice="Choose its folder or repository as Decoder, in the settings of the model family. It decodes "
            "samples.",
        ) from error


def _encoder_file(source: AutoencoderSource, request: LoadRequest[FamilySettings], decoder: Path) -> Path:
    if source.encoder and from_root(source.encoder).is_file():
        return from_root(source.encoder)
    folders = [decoder]
    if source.encoder and not _file_in(decoder, source.encoder_files):
        try:
            folders.append(locate_for(request, source.encoder, (), source.encoder_files))
        except MissingModelError as error:
            place = f"{source.encoder!r}, is not on this machine, and could not be downloaded"
            raise _without_encoder(place) from error
    encoder = next((file for folder in folders if (file := _file_in(folder, source.encoder_files))), None)
    if encoder is None:
        raise _without_encoder(f"{folders[-1] / source.encoder_files[0]}, does not exist")
    return encoder


def _file_in(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _without_encoder(place: str) -> DarkroomError:
    return DarkroomError(
        f"The EfficientNet encoder, {place}. Without it no image can be encoded.",
        advice="Choose its file in the settings of the model family, or put it into the decoder's folder.",
    )


def _encoder_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the encoder in a file, by its own names."""
    stored, _ = read_stored(file)
    inside = {name.removeprefix(_IN_FILE): tensor for name, tensor in stored.items() if name.startswith(_IN_FILE)}
    return {name: tensor.make() for name, tensor in (inside or stored).items()}


def _config(module: Any) -> dict[str, Any]:
    """Return the config of a part without the place and the version that diffusers adds to it."""
    config = module.config
    values = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    return {key: value for key, value in values.items() if not key.startswith("_")}


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a dtype; counters stay whole numbers."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
