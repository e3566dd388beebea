"""Reads a model from any form: a diffusers folder, a repository, a file in the original layout."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.families.kinds.vae import vae_weights_at
from modules.families.parts.files import ModelFiles, locate_for, read_folder, require_known_denoiser
from modules.families.parts.single_file.checkpoint import (
    Checkpoint,
    empty_part,
    load_part,
    load_part_file,
    load_vae_file,
    open_checkpoint,
)
from modules.families.parts.single_file.denoiser_file import config_in_file, parts_inside
from modules.families.parts.single_file.models import configs_of_model
from modules.families.protocol import NONE_LATER, LayersReadLater, LoadRequest, never_packed, read_with_part
from modules.families.registry import files_of, published_model
from modules.families.separate_parts import advice_for, config_next_to, lack_of
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, PartSpec
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.formats.diffusers_folder import read_json
from modules.formats.gguf_header import is_gguf
from modules.formats.headers import UnreadableFileError
from modules.formats.repository import index_file
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root

logger = logging.getLogger("darkroom.families")


RequireConfig = Callable[[Mapping[str, Any], str], None]
"""Raises DarkroomError if the config of a denoiser, whose model has this name, is of a model that is not supported."""


def any_config(config: Mapping[str, Any], name: str) -> None:
    """Accept every config of a denoiser."""


def read_model(
    request: LoadRequest[FamilySettings], spec: FamilySpec, require: RequireConfig = any_config
) -> ModelFiles:
    """Return the parts of the requested model, each in its dtype.

    Of a part with a file of its own only the config is read from the base model. Optional parts that are left out, or
    that the model lacks, are not among them. Raises DarkroomError if a file is missing or the model is not of the
    family, or not a variant of it that is supported. A folder that `require` refuses is refused before its weights are
    read.
    """
    spec = spec.without(request.left_out)
    path = from_root(request.base_model)
    kind = identify(path) if request.base_model and path.is_file() else None
    part_files = dict(request.part_files)
    if kind is not None and (kind.is_denoiser or is_gguf(path)):  # it is read as a file of its own is
        part_files.setdefault(spec.denoiser.name, request.base_model)
    if denoiser_file := part_files.get(spec.denoiser.name):
        for part_name in parts_inside(spec.name, read_checkpoint_header(from_root(denoiser_file)).shapes):
            part_files.setdefault(part_name, denoiser_file)
    files = _read_base(request, spec, kind, part_files, require)
    for part in spec.parts:
        file = part_files.get(part.name)
        if file and part.name in files.parts and part.name not in request.without_weights:
            files = _with_part(files, spec, part, from_root(file), request)
    require_known_denoiser(files, spec)
    require(files.parts[spec.denoiser.name].config, files.name)
    return _with_safe_vae(files, request, spec)


def _read_base(
    request: LoadRequest[FamilySettings],
    spec: FamilySpec,
    kind: FileKind | None,
    elsewhere: Mapping[str, str],
    require: RequireConfig,
) -> ModelFiles:
    """Return the base model, which has a `kind` if it is a file.

    The weights of the parts in `elsewhere` are neither read nor downloaded.
    """
    name, path = request.base_model, from_root(request.base_model)
    unread = {*request.without_weights, *elsewhere}
    dtypes = _dtypes_to_read(request, spec)
    if kind is not None and kind.is_denoiser:
        return _read_denoiser_alone(request, spec, kind, unread, elsewhere)
    if kind is not None:
        spec = spec.without(kind.without - elsewhere.keys())
        files = _read_single_file(path, kind, name, spec, dtypes, without_weights=unread, read_later=request.read_later)
        return files if spec.text.ships_vocabulary else replace(files, tokenizers=_tokenizers(request, spec, kind))
    parts = [p.name for p in spec.parts if p.name not in unread]
    folder = locate_for(request, name, parts)
    file_kind = identify(folder)
    if not file_kind.family and index_file(folder) is not None:
        raise DarkroomError(f"{name} is not {spec.label}. {file_kind.sentence}", advice="Choose a model of the family.")
    for part in (p for p in spec.parts if p.published_in and p.name in file_kind.without - elsewhere.keys()):
        raise DarkroomError(lack_of(part, name), advice=advice_for(part))
    if spec.denoiser.name not in elsewhere:
        require(read_json(folder, spec.denoiser.name, "config.json"), name)
    there = replace(spec, parts=tuple(p for p in spec.parts if p.name not in file_kind.without))
    scaled = {p: file for p in there.parts if p.name not in unread and (file := _scaled_file(folder, name, p))}
    elsewhere_too = unread | {p.name for p in scaled}
    files = read_folder(folder, name, there, dtypes, without_weights=elsewhere_too, read_later=request.read_later)
    for part, file in scaled.items():
        files = _with_part(files, spec, part, file, replace(request, stays_packed=never_packed))
    lacking = {name: elsewhere[name] for name in file_kind.without if name in elsewhere}
    return _with_published_parts(request, files, file_kind, spec, lacking)


def _scaled_file(folder: Path, name: str, part: PartSpec) -> Path | None:
    """Return the file of a part in a folder whose weights are float8 with scales, which diffusers does not read.

    Raises DarkroomError if several files may be meant. `name` is the user's name for the folder.
    """
    files = [] if part.role == "vae" else sorted((folder / part.name).glob("*.safetensors"))
    stem = folder / part.name / ("model" if part.library == "transformers" else "diffusion_pytorch_model")
    if (whole := stem.with_suffix(".safetensors")) in files:  # the library reads no other one then
        files = [whole]
    try:
        is_scaled = any(read_checkpoint_header(file).scales.names for file in files)
    except UnreadableFileError:
        return None  # reading the folder reports which part it is
    if not is_scaled:
        return None
    places = files if len(files) == 1 else sorted((folder / part.name).glob("*.safetensors.index.json"))
    if len(places) != 1:
        several = f"more than one index ({', '.join(f.name for f in places)})" if places else "no index"
        raise DarkroomError(
            f"The {part.label} of {name} has float8 weights with scales in several files, such as {files[0].name} and "
            f"{files[1].name}, and {several}: which of them belong together is not known.",
            advice=f"Keep one file, or the files of one index, in {folder / part.name}.",
        )
    return places[0]


def _read_denoiser_alone(
    request: LoadRequest[FamilySettings],
    spec: FamilySpec,
    kind: FileKind,
    unread: Collection[str],
    elsewhere: Mapping[str, str],
) -> ModelFiles:
    """Return the configs of a model whose base model is a file with the denoiser alone; the other parts have files.

    Its tokenizers come from the published model's repository if the program contains none.
    """
    name, path = request.base_model, from_root(request.base_model)
    if kind.family != spec.name:
        raise DarkroomError(f"{name} is not {spec.label}. {kind.sentence}", advice="Choose the model's family.")
    if lacking := [p.label for p in spec.parts if p.name not in unread]:
        raise DarkroomError(
            f"{name} has no {' and no '.join(lacking)}. {kind.sentence}",
            advice="Choose a file for each of them, or a complete base model.",
        )
    configs = _configs_of_model(open_checkpoint(path, kind))
    parts = {p.name: empty_part(load_factory(p.model_class), p.model.own_config(configs[p.name])) for p in spec.parts}
    if spec.text.ships_vocabulary:
        return ModelFiles(name, parts, configs["scheduler"], tokenizers={})
    tokenizers = {**_tokenizers(request, spec, kind), **_tokenizers_next_to(spec, elsewhere)}
    return ModelFiles(name, parts, configs["scheduler"], tokenizers, next(iter(tokenizers.values())).parent)


def _configs_of_model(checkpoint: Checkpoint) -> Mapping[str, Mapping[str, Any]]:
    """Return the configs of a file's model, also of optional parts that are not in the file."""
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    return {**configs_of_model(checkpoint.kind.model, shapes, checkpoint.metadata), **checkpoint.configs}


def _tokenizers(request: LoadRequest[FamilySettings], spec: FamilySpec, kind: FileKind) -> dict[str, Path]:
    """Return the tokenizers' folders of the published model that a file is of, from its repository."""
    folder = locate_for(request, published_model(kind.model).repository, [])
    return {encoder: folder / tokenizer for encoder, tokenizer in spec.tokenizers.items()}


def _with_published_parts(
    request: LoadRequest[FamilySettings],
    files: ModelFiles,
    kind: FileKind,
    spec: FamilySpec,
    lacking: Mapping[str, str],
) -> ModelFiles:
    """Return the files of a folder's model with parts that it lacks, which have files of their own: the config is the
    published model's, and so is the tokenizer, unless the part is published apart.
    """
    if not lacking:
        return files
    configs = published_model(kind.model).shipped_configs()
    configs |= {p.name: own for p in spec.parts if p.published_in and (own := config_next_to(lacking.get(p.name, "")))}
    added = {
        p.name: empty_part(load_factory(p.model_class), p.model.own_config(configs[p.name]))
        for p in spec.parts
        if p.name in lacking
    }
    tokenizers = _tokenizers_next_to(spec, lacking)
    if not spec.text.ships_vocabulary and lacking.keys() - tokenizers.keys():
        tokenizers |= _tokenizers(request, spec, kind)
    return replace(files, parts={**files.parts, **added}, tokenizers={**tokenizers, **files.tokenizers})


def _tokenizers_next_to(spec: FamilySpec, files: Mapping[str, str]) -> dict[str, Path]:
    """Return the folders of the files of parts that are published apart from their model, with their tokenizers."""
    return {p.name: from_root(files[p.name]).parent for p in spec.parts if p.published_in and p.name in files}


def _dtypes_to_read(request: LoadRequest[FamilySettings], spec: FamilySpec) -> Mapping[str, torch.dtype]:
    """Return the dtypes of the parts, with float32 for a VAE that may overflow in float16: it is cast later."""
    careful = [p.name for p in spec.parts if _may_overflow(p, request, spec)]
    return {**request.dtypes, **dict.fromkeys(careful, torch.float32)}


def _may_overflow(part: PartSpec, request: LoadRequest[FamilySettings], spec: FamilySpec) -> bool:
    return spec.latents.overflows_in_float16 and part.role == "vae" and request.dtype_of(part.name) == torch.float16


def _with_part(
    files: ModelFiles, spec: FamilySpec, part: PartSpec, path: Path, request: LoadRequest[FamilySettings]
) -> ModelFiles:
    """Return the files with a part from a file of its own, built from the base model's config of it.

    With the denoiser of a distilled model that has another config comes the scheduler of the published one.
    """
    config: Any = files.parts[part.name].config
    settings = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    dtype = _dtypes_to_read(request, spec).get(part.name, torch.float32)
    scheduler, record = files.scheduler, files_of(spec.name).denoiser_file
    if part.role == "denoiser" and record is not None and record.config_marks:
        settings = dict(record.with_marks(read_checkpoint_header(path).shapes, settings))
    if part.role == "denoiser" and request.may_be_distilled:
        own = dict(config_in_file(spec.name, read_checkpoint_header(path).weights, settings))
        if own != settings:
            settings, scheduler = own, published_model(identify(path).model).shipped_configs()["scheduler"]
    if part.role == "vae":
        module = load_vae_file(vae_weights_at(path), part.model, settings, dtype)
    else:
        later = request.read_later.get(part.name, read_with_part)
        module = load_part_file(
            path, spec, part, settings, dtype, stays_packed=request.stays_packed, is_read_later=later
        )
    return replace(files, parts={**files.parts, part.name: module}, scheduler=scheduler)


def _with_safe_vae(files: ModelFiles, request: LoadRequest[FamilySettings], spec: FamilySpec) -> ModelFiles:
    """Return the files with a VAE in the dtype that it does not overflow in."""
    for part in spec.parts:
        if _may_overflow(part, request, spec):
            halve_if_safe(files.parts[part.name], otherwise=request.fallback_dtype, name=request.base_model)
    return files


def halve_if_safe(vae: Any, *, otherwise: torch.dtype, name: str) -> None:
    """Cast a float32 VAE to float16, or to another dtype if its config marks it as overflowing in float16.

    SDXL's own VAE overflows and decodes black images; fixed VAEs have `force_upcast` false.
    """
    if getattr(vae.config, "force_upcast", True):  # classes without it do not mention float16
        dtype = str(otherwise).removeprefix("torch.")
        logger.warning("The VAE of %s overflows in float16 according to its config; it is used in %s.", name, dtype)
        torch.nn.Module.to(vae, otherwise)  # diffusers' own warns of weights that it keeps in float32: here of none
    else:
        vae.half()


def _read_single_file(
    path: Path,
    kind: FileKind,
    name: str,
    spec: FamilySpec,
    dtypes: Mapping[str, torch.dtype],
    *,
    without_weights: Collection[str] = (),
    read_later: LayersReadLater = NONE_LATER,
) -> ModelFiles:
    """Return the parts of a .safetensors or .ckpt file of a `kind`, in the original layout; `name` is the user's.

    Needs no network: the configs and the vocabulary are bundled. Of the parts in `without_weights` no tensor is read.
    Raises DarkroomError, with a description of the file, where it is not a whole model of the family.
    """
    if not kind.is_model:
        raise DarkroomError(f"{name} is not a whole model. {kind.sentence}", advice="Choose a checkpoint.")
    if kind.family != spec.name:
        raise DarkroomError(f"{name} is not {spec.label}. {kind.sentence}", advice="Choose the model's family.")
    checkpoint = open_checkpoint(path, kind)
    configs = _configs_of_model(checkpoint)

    def read(part: str, part_class: Any) -> Any:
        if part in without_weights:
            return empty_part(part_class, configs[part])
        dtype, later = dtypes.get(part, torch.float32), read_later.get(part, read_with_part)
        return load_part(checkpoint, part, part_class, dtype, is_read_later=later)

    parts = {p.name: read(p.name, load_factory(p.model_class)) for p in spec.parts}
    return ModelFiles(name, parts, checkpoint.scheduler_config(), tokenizers={})
