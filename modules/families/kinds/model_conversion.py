"""Reads a whole model from a diffusers folder or a single file and writes it as either."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import torch

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.folder import folder_metadata
from modules.families.kinds.record import Form
from modules.families.kinds.source import Source
from modules.families.parts.folder_model import folder_configs, folder_states, parts_in, traits_of, write_folder
from modules.families.parts.single_file.checkpoint import open_checkpoint, part_state
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.parts.single_file.write import needs_beside, write_checkpoint
from modules.formats.safetensors_io import CONVERTED, OnWritten
from modules.system.errors import DarkroomError


def open_folder(path: Path, kind: FileKind, *, use_ema: bool = False) -> Source:
    """Open a model in diffusers' folder layout; it contains no EMA weights."""
    parts = parts_in(traits_of(kind))
    metadata = folder_metadata(path, kind)
    return Source(path, kind, folder_configs(path, parts), folder_states(path, parts), metadata=metadata)


def open_single_file(path: Path, kind: FileKind, *, use_ema: bool = False) -> Source:
    """Open a single-file checkpoint. Raises DarkroomError where a part is missing."""
    traits_of(kind)
    checkpoint = open_checkpoint(path, kind)
    states = {part: part_state(checkpoint, part, use_ema=use_ema) for part in checkpoint.layouts}
    configs = {**checkpoint.configs, "scheduler": checkpoint.scheduler_config()}
    return Source(path, kind, configs, states, metadata=checkpoint.metadata, uses_ema=use_ema, beside=checkpoint.beside)


def notes(source: Source, form: Form) -> tuple[str, ...]:
    """Return what a conversion leaves out: a file or folder of ours has one set of weights."""
    if source.kind.facts.get("ema") != "beside the weights":
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
) -> list[Path]:
    """Write a model as a folder or as one file and return the paths written.

    Its metadata are kept, also by way of a folder, except for the hashes of the old file. `created` is the time of the
    conversion, not that of the model, so it is not in its metadata.
    """
    traits, metadata = traits_of(source.kind), {**(source.metadata or {})}
    if form == "single" and not source.beside and needs_beside(traits):
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
        beside=source.beside,
    )
