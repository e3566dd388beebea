"""Converts a model or a LoRA between its forms. The input's form is detected.

model   diffusers folder, .safetensors or .ckpt in the original layout -> folder or .safetensors
LoRA    any form -> kohya or diffusers/PEFT form; other adapters -> kohya form

The record of each kind of file names the functions that open and write it. A base model can also become an inpainting
model that predicts the same: its UNet gets five more input channels whose weights are zero, so the mask and the latents
of the conditioning image have no effect at first. RunwayML's inpainting model began like this (the model card of
stable-diffusion-inpainting).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import torch

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.folder import folder_metadata
from modules.families.kinds.identify import identify
from modules.families.kinds.record import Form
from modules.families.kinds.registry import FILE_KINDS
from modules.families.parts.folder_model import folder_configs, folder_states, parts_in, traits_of, write_folder
from modules.families.parts.single_file.checkpoint import open_checkpoint, part_state
from modules.families.parts.single_file.models import CONFIGS_KEY, layouts
from modules.families.parts.single_file.record import Configs
from modules.families.parts.single_file.write import States, needs_companions, write_checkpoint
from modules.families.registry import FAMILIES, published_model
from modules.formats.adapter_file import AdapterFile
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.safetensors_io import CONVERTED, OnWritten
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory


@dataclass(frozen=True, eq=False)
class Source:
    """An opened source: the model's parts, or the content of an adapter file.

    `uses_ema`: the EMA weights were opened in place of the other weights. `companions` are the tensors of further
    networks in the file, such as a depth estimator, by their names in it.
    """

    path: Path
    kind: FileKind
    configs: Configs
    states: States
    adapter: AdapterFile | None = None
    metadata: Mapping[str, str] | None = None
    uses_ema: bool = False
    companions: Mapping[str, LazyTensor] = field(default_factory=dict)


def open_folder(path: Path, kind: FileKind, *, use_ema: bool = False) -> Source:
    """Open a model in diffusers' folder layout; it contains no EMA weights."""
    traits = traits_of(kind)
    metadata = folder_metadata(path, kind)
    parts = parts_in(traits, kind.without)
    configs, states = folder_configs(path, traits, parts), folder_states(path, traits, parts)
    return Source(path, kind, configs, states, metadata=metadata)


def open_single_file(path: Path, kind: FileKind, *, use_ema: bool = False) -> Source:
    """Open a single-file checkpoint. Raises DarkroomError if a part is missing."""
    traits_of(kind)
    checkpoint = open_checkpoint(path, kind)
    states = {part: part_state(checkpoint, part, use_ema=use_ema) for part in checkpoint.layouts}
    configs = {**checkpoint.configs, "scheduler": checkpoint.scheduler_config()}
    return Source(
        path, kind, configs, states, metadata=checkpoint.metadata, uses_ema=use_ema, companions=checkpoint.companions
    )


def notes_of_folder(source: Source, form: Form) -> tuple[str, ...]:
    """Return which parts of a folder's model its single files do not have."""
    left_out = sorted(source.states.keys() - layouts(source.kind.model, source.configs).keys())
    if form != "single" or not left_out:
        return ()
    labels = FAMILIES[published_model(source.kind.model).family].part_labels
    parts = ", ".join(labels.get(part, part) for part in left_out)
    return (f"A single file of this model has its denoiser alone. Left out: {parts}.",)


def notes(source: Source, form: Form) -> tuple[str, ...]:
    """Return a sentence about the weights that a conversion leaves out: our files have a single set of weights."""
    if source.kind.facts.get("ema") != "besides the weights":
        return ()
    if source.uses_ema:
        return (f"The weights of {source.path.name} that are not EMA weights are left out, as chosen.",)
    return (f"The EMA weights of {source.path.name} are left out: use --ema to convert them instead of the others.",)


def write_model(
    source: Source,
    out: Path,
    form: Form,
    *,
    dtype: torch.dtype | None,
    created: datetime,
    on_written: OnWritten | None = None,
    is_scaled_float8: bool = False,
) -> list[Path]:
    """Write a model as a folder or as one file and return the paths written.

    Its metadata are kept, also by way of a folder, except for the hashes of the old file. `created` is the time of the
    conversion, not of the model, so it is not in its metadata. Raises DarkroomError for scaled float8 in a folder.
    """
    if is_scaled_float8 and form == "folder":
        raise DarkroomError("A diffusers folder has no scales for float8.", advice="Write a .safetensors file.")
    traits, metadata = traits_of(source.kind), {**(source.metadata or {})}
    if form == "single" and not source.companions and needs_companions(traits):
        raise DarkroomError(
            f"A single file of a {traits.variant} model also contains its depth estimator, and {source.path.name} has "
            "none.",
            advice="Use --to folder.",
        )
    if form == "folder":
        metadata.pop(CONFIGS_KEY, None)  # the folder has its configs
        tokenizers = source.path if source.path.is_dir() else None
        write_folder(
            out,
            source.states,
            source.configs,
            traits,
            dtype=dtype,
            tokenizers_from=tokenizers,
            metadata=metadata,
            on_written=on_written,
            advice=CONVERTED,
        )
        return [out]
    return write_checkpoint(
        out,
        source.states,
        source.configs,
        traits,
        dtype=dtype,
        title=out.stem,
        created=None,
        metadata=metadata,
        on_written=on_written,
        advice=CONVERTED,
        companions=source.companions,
        is_scaled_float8=is_scaled_float8,
    )


_VARIANT = "inpainting"
_FIRST = "conv_in.weight"


def as_inpainting(source: Source) -> Source:
    """Return an opened base model as an inpainting model. Raises DarkroomError for any other file."""
    kind = source.kind
    supported = kind.is_model and _VARIANT in published_model(kind.model).pipelines
    if not supported or _VARIANT not in FAMILIES[kind.family].variants:
        raise DarkroomError(
            f"{source.path.name} cannot become an inpainting model. {kind.sentence}",
            advice="Choose a base model of SD 1.x, SD 2.x or SDXL.",
        )
    if kind.variant:
        raise DarkroomError(
            f"{source.path.name} is not a base model. {kind.sentence}",
            advice="Convert it without --to-inpainting." if kind.variant == _VARIANT else "Choose a base model.",
        )
    [name] = FAMILIES[kind.family].names_of("denoiser")
    more = FAMILIES[kind.family].variants[_VARIANT]
    weight = source.states[name][_FIRST]
    state = {**source.states[name], _FIRST: _widen(weight, more)}
    return replace(
        source,
        kind=replace(kind, variant=_VARIANT),
        configs={**source.configs, name: {**source.configs[name], "in_channels": weight.shape[1] + more}},
        states={**source.states, name: state},
    )


def _widen(weight: LazyTensor, more: int) -> LazyTensor:
    """Return a convolution's weight with `more` input channels of zeros appended."""
    rows, columns, *kernel = weight.shape

    def append_zeros(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor.new_zeros(rows, more, *kernel)], dim=1)

    return weight.then((rows, columns + more, *kernel), append_zeros)


_ADVICE: dict[Form, str] = {
    "kohya": "Use --to kohya, --to comfyui or --to peft.",
    "single": "Use --to single or --to folder.",
}


def target_form(kind: FileKind, out: Path, wanted: Form | None) -> Form:
    """Return the form to convert into: the wanted one, or the form that follows from the source and the output's name.

    Raises DarkroomError if source and form do not match.
    """
    forms = FILE_KINDS[kind.kind].forms or ("single", "folder")  # `open_source` rejects kinds that cannot be converted
    is_file = out.suffix.lower() == ".safetensors"
    if wanted is not None and wanted not in forms:
        what = "LoRA" if "kohya" in forms else "model"
        raise DarkroomError(
            f"A {what} cannot be converted into a {wanted} {'model' if what == 'LoRA' else 'LoRA'}.",
            advice=_ADVICE[forms[0]],
        )
    if "kohya" in forms:
        form: Form = wanted or ("peft" if _has_peft_form(kind) else "kohya")
    else:
        form = wanted or ("single" if is_file else "folder")
    if (form == "folder") == bool(out.suffix.lower() in (".safetensors", ".ckpt", ".pt")):
        raise DarkroomError(
            f"{out.name} is not a valid name for {'a folder' if form == 'folder' else 'a file of that form'}.",
            advice="Names of files end in .safetensors; the name of a diffusers folder does not.",
        )
    return form


def _has_peft_form(kind: FileKind) -> bool:
    """Return whether an adapter file is converted into the PEFT form by default: a LoRA in kohya's form."""
    return kind.facts.get("form") == "kohya" and kind.facts.get("adapter") in ("LoRA", "DoRA (LoRA)")


def open_source(path: Path, *, use_ema: bool = False) -> Source:
    """Open a file or folder for conversion. Raises DarkroomError if it cannot be converted."""
    kind = identify(path)
    opener = FILE_KINDS[kind.kind].opener
    if not opener:
        labels = ", ".join(spec.label for spec in FAMILIES.values())
        raise kind.refusal(f"{path.name} cannot be converted.", f"Choose a whole model or a LoRA file of {labels}.")
    opened: Callable[..., Source] = load_factory(opener)
    return opened(path, kind, use_ema=use_ema)


def conversion_notes(source: Source, form: Form) -> tuple[str, ...]:
    """Return a sentence for everything that the conversion into a form changes or cannot keep."""
    reference = FILE_KINDS[source.kind.kind].notes
    sentences: tuple[str, ...] = load_factory(reference)(source, form) if reference else ()
    return sentences


def convert(
    source: Source,
    out: Path,
    form: Form,
    *,
    dtype: torch.dtype | None,
    created: datetime,
    on_written: OnWritten | None = None,
    is_scaled_float8: bool = False,
) -> list[Path]:
    """Write an opened model or LoRA in another form and return the files and folders written.

    Raises DarkroomError if a tensor is missing or not finite, or if the result cannot be in scaled float8; an existing
    output then stays unchanged.
    """
    writer: Callable[..., list[Path]] = load_factory(FILE_KINDS[source.kind.kind].writer)
    write = partial(writer, source, out, form, dtype=dtype, created=created, on_written=on_written)
    if not is_scaled_float8:
        return write()
    if not source.kind.is_model:
        raise DarkroomError(f"{source.path.name} is not a whole model, and only these can be in scaled float8.")
    return write(is_scaled_float8=True)
