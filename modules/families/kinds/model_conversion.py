"""Reads a whole model from a diffusers folder or a single file and writes it as either."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import torch

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import Form
from modules.families.kinds.source import Source
from modules.families.parts.folder_model import folder_configs, folder_states, parts_in, traits_of, write_folder
from modules.families.parts.single_file.checkpoint import open_checkpoint, part_state
from modules.families.parts.single_file.write import write_checkpoint
from modules.formats.safetensors_io import OnWritten


def open_folder(path: Path, kind: FileKind, *, use_ema: bool = False) -> Source:
    """Open a model in diffusers' folder layout; it contains no EMA weights."""
    parts = parts_in(path, traits_of(kind))
    return Source(path, kind, folder_configs(path, parts), folder_states(path, parts))


def open_single_file(path: Path, kind: FileKind, *, use_ema: bool = False) -> Source:
    """Open a single-file checkpoint. Raises DarkroomError where a part is missing."""
    traits_of(kind)
    checkpoint = open_checkpoint(path, kind)
    states = {part: part_state(checkpoint, part, use_ema=use_ema) for part in checkpoint.layouts}
    configs = {**checkpoint.configs, "scheduler": checkpoint.scheduler_config()}
    return Source(path, kind, configs, states, metadata=checkpoint.metadata)


def write_model(
    source: Source,
    out: Path,
    form: Form,
    *,
    dtype: torch.dtype | None,
    created: datetime,
    on_written: OnWritten | None = None,
) -> list[Path]:
    """Write a model as a folder or as one file and return the paths written."""
    traits = traits_of(source.kind)
    kept = {n: v for n, v in (source.metadata or {}).items() if not n.startswith("sshs_")}  # hashes of the old file
    if form == "folder":
        tokenizers = source.path if source.path.is_dir() else None
        write_folder(
            out, source.states, source.configs, traits, dtype=dtype, tokenizers_from=tokenizers, on_written=on_written
        )
        return [out]
    return write_checkpoint(
        out,
        source.states,
        source.configs,
        traits,
        dtype=dtype,
        title=kept.get("modelspec.title", out.stem),
        created=created,
        metadata=kept,
        on_written=on_written,
    )
