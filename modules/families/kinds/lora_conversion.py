"""Reads a LoRA of kohya or PEFT form and writes it in either."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import torch

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import Form
from modules.families.kinds.source import Source
from modules.families.parts.lora_names import kohya_naming, peft_name
from modules.families.parts.single_file.models import configs_of_file
from modules.families.registry import FAMILIES, published
from modules.formats.lora_files import NameOf, from_kohya, from_peft, to_kohya, to_peft
from modules.formats.safetensors_io import PAYLOAD_SHA256, OnWritten, Writable, write_safetensors
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError


def open_lora(path: Path, kind: FileKind, *, use_ema: bool = False) -> Source:
    """Return the layers of a LoRA file. Raises DarkroomError where it is of another form, or of an unknown model."""
    if kind.facts["form"] not in ("kohya", "diffusers") or not kind.model:
        labels = ", ".join(spec.label for spec in FAMILIES.values())
        raise DarkroomError(
            f"{path.name} cannot be converted. {kind.sentence}",
            advice=f"Choose a LoRA file in kohya or diffusers form for {labels}.",
        )
    stored, metadata = read_stored(path)
    tensors = {name: tensor.make() for name, tensor in stored.items()}
    configs = configs_of_file(kind.model, {}, metadata)
    if kind.facts["form"] == "kohya":
        try:
            names = published(kind.model).lora.readable(configs)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise DarkroomError(
                f"The model configs in the metadata of {path.name} are not valid: {error!r}."
            ) from error
        layers = from_kohya(tensors, names)
    else:
        layers = from_peft(tensors, metadata)
    return Source(path, kind, configs, {}, tuple(layers), metadata)


def write_lora(
    source: Source,
    out: Path,
    form: Form,
    *,
    dtype: torch.dtype | None,
    created: datetime,
    on_written: OnWritten | None = None,
) -> list[Path]:
    """Write a LoRA. Its metadata is kept, except for the hashes of the old file."""
    dropped = ("lora_adapter_metadata", "sshs_legacy_hash")
    metadata = {n: v for n, v in (source.metadata or {}).items() if n not in dropped}
    metadata |= {"sshs_model_hash": PAYLOAD_SHA256, "modelspec.hash_sha256": f"0x{PAYLOAD_SHA256}"}
    tensors: Mapping[str, Writable]
    if form == "kohya":
        tensors = to_kohya(source.layers, _checked_naming(source))
        metadata = _kohya_metadata(source) | metadata
    else:
        tensors, settings = to_peft(source.layers, peft_name)
        metadata |= settings
    write_safetensors(out, tensors, metadata, dtype=dtype, on_written=on_written)
    return [out]


def _checked_naming(source: Source) -> NameOf:
    name_of = kohya_naming(source.kind.model, source.configs)

    def name(part: str, path: str) -> str:
        try:
            return name_of(part, path)
        except KeyError:
            raise DarkroomError(
                f"The LoRA has a layer that {source.kind.model} models do not have: {part}.{path}. Nothing was saved."
            ) from None

    return name


def _kohya_metadata(source: Source) -> dict[str, str]:
    """Return the metadata that A1111 and Forge read (sd-scripts' minimum set)."""
    ranks = [layer.rank for layer in source.layers] or [0]
    alphas = [layer.lora_alpha for layer in source.layers] or [0.0]
    record = published(source.kind.model)
    return {
        "ss_base_model_version": record.kohya_version,
        "ss_v2": str(record.is_v2),
        "ss_network_module": "networks.lora",
        "ss_network_dim": str(max(ranks)),
        "ss_network_alpha": f"{max(alphas):g}",
        "ss_network_args": "{}",
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{record.architecture}/lora",
    }
