"""The record of a model read from its files, independent of their form.

A family's `load` reads it; its `assemble` builds the family from it. Readers of all forms return this record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modules.families.parts.clip_text import TextTower, is_open_clip
from modules.families.parts.clip_tokens import OPEN_CLIP_PAD, load_clip_tokenizer
from modules.families.parts.clip_vocabulary import END_TOKEN
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.protocol import NONE_LATER, LayersReadLater, LoadRequest
from modules.families.published import PublishedModel
from modules.families.registry import files_of
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, PartSpec, variant_of
from modules.formats.diffusers_folder import keeps_some_in_float32, locate, read_json, read_part, stored_dtype
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.quantization.linear import read_later
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """A model as read: its parts on the CPU, frozen, its scheduler's config, its tokenizers' folders.

    `name` is the user's name for the model. A part without a tokenizer folder uses the bundled tokenizer.
    """

    name: str
    parts: Mapping[str, Any]
    scheduler: Mapping[str, Any]
    tokenizers: Mapping[str, Path]
    folder: Path | None = None
    """The folder of a model in diffusers' layout."""

    def tower(self, part: str, *, skipped_layers: int, is_normed: bool, is_weighted: bool = False) -> TextTower:
        """Return one of the text encoders with its tokenizer."""
        encoder = self.parts[part]
        usual_pad = OPEN_CLIP_PAD if is_open_clip(encoder) else END_TOKEN
        tokenizer = load_clip_tokenizer(self.tokenizers.get(part), usual_pad=usual_pad)
        return TextTower(encoder, tokenizer, skipped_layers, is_normed, is_weighted)


def read_folder(
    folder: Path,
    name: str,
    spec: FamilySpec,
    dtypes: Mapping[str, torch.dtype],
    *,
    without_weights: Collection[str] = (),
    read_later: LayersReadLater = NONE_LATER,
) -> ModelFiles:
    """Return a model in diffusers' folder layout, each part in its dtype from `dtypes` (default float32).

    `name` is the user's name for the model. Of the parts in `without_weights` only the config is read: they are on the
    meta device. The weights of the layers in `read_later` are read when they are quantized. Raises
    DarkroomError if a file is missing.
    """

    def read(part: PartSpec) -> Any:
        name, kind = part.name, load_factory(part.model_class)
        if name in without_weights:
            return empty_part(kind, part.model.own_config(read_json(folder, name, "config.json")))
        module = read_weights(part, kind, dtypes.get(name, torch.float32))
        if part.library == "transformers" and part.model.fill_buffers:  # the library rounds them to the dtype it reads
            load_factory(part.model.fill_buffers)(module)
        return module

    def read_weights(part: PartSpec, kind: Any, dtype: torch.dtype) -> Any:
        name = part.name
        names = {} if part.model.inside is None else part.model.inside.names
        if name not in read_later or keeps_some_in_float32(kind):
            return read_part(folder, name, kind, dtype, names=names)
        # In another dtype than the files', all weights would be in memory before the first one is quantized.
        module = read_part(folder, name, kind, stored_dtype(folder / name) or dtype, names=names)
        _cast(module, dtype, read_later[name])
        return module

    return ModelFiles(
        name=name,
        scheduler=scheduler_of(folder, files_of(spec.name).models[0]),
        parts={part.name: read(part) for part in spec.parts},
        tokenizers={name: folder / tokenizer for name, tokenizer in spec.tokenizers.items()},
        folder=folder,
    )


def scheduler_of(folder: Path, model: PublishedModel) -> dict[str, Any]:
    """Return the scheduler's config in a folder of a model. Modular pipelines may make it themselves, without a file:
    then it is the published one.

    Raises DarkroomError if it is missing in any other folder, or damaged.
    """
    if model.blocks and not (folder / "scheduler").is_dir():
        return dict(model.shipped_configs()["scheduler"])
    return read_json(folder, "scheduler", "scheduler_config.json")


def _cast(module: Any, dtype: torch.dtype, is_read_later: Callable[[str], bool]) -> None:
    """Cast the weights of a part that were read in the dtype of its files, as the library would have cast them.

    Layers for which `is_read_later` is true are cast one by one as they are quantized.
    """
    linear = [n for n, layer in module.named_modules() if type(layer) is torch.nn.Linear and is_read_later(n)]
    sources: dict[str, LazyTensor] = {name: lazy(module.get_submodule(name).weight.detach()) for name in linear}
    read_later(module, sources, dtype)
    in_files = module.state_dict().keys()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_floating_point() and not tensor.is_meta and name in in_files:
            tensor.data = tensor.data.to(dtype)


def require_known_denoiser(files: ModelFiles, spec: FamilySpec) -> None:
    """Raise DarkroomError if the denoiser has the inputs of no supported variant of the family."""
    channels = spec.denoiser.model.channels_in(files.parts[spec.denoiser.name].config)
    if not variant_of(spec, channels):
        known = " or ".join(str(spec.latents.in_channels(more)) for more in (0, *sorted(spec.variants.values())))
        raise DarkroomError(
            f"The {spec.denoiser.label} of {files.name} has {channels} input channels instead of {known}: it is a "
            "model variant that is not supported.",
            advice="Choose the text-to-image base model.",
        )


def locate_for(
    request: LoadRequest[FamilySettings], name: str, parts: Sequence[str], files: Sequence[str] = ()
) -> Path:
    """Return the folder of a model as a request allows to get it; it has the arguments and errors of `locate`."""
    return locate(
        name,
        parts=parts,
        files=files,
        offline=request.offline,
        cache_dir=request.hub_cache_dir,
        hub=request.hub,
        on_bytes=request.on_bytes,
    )
