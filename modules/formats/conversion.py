"""From any form of a model or a LoRA into any other: what is read is recognised, what is written is named.

model   diffusers folder, .safetensors or .ckpt in the original layout -> folder or .safetensors
LoRA    kohya or diffusers/PEFT form -> the other, or the same in another dtype
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import torch

from modules.formats.file_kind import FileKind
from modules.formats.folder_model import folder_configs, folder_states, traits_of, write_folder
from modules.formats.kinds import identify
from modules.formats.lora_files import LoraLayerWeights, NameOf, from_kohya, from_peft, to_kohya, to_peft
from modules.formats.lora_names import kohya_naming, peft_name, readable_kohya_names
from modules.formats.metadata import architecture_of
from modules.formats.safetensors_io import PAYLOAD_SHA256, OnWritten, Writable, write_safetensors
from modules.formats.single_file.checkpoint import open_checkpoint, part_state
from modules.formats.single_file.models import Configs, configs_of_file, shipped_configs
from modules.formats.single_file.write import States, write_checkpoint
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError

Form = Literal["single", "folder", "kohya", "peft"]
FORMS: tuple[Form, ...] = ("single", "folder", "kohya", "peft")


@dataclass(frozen=True, eq=False)
class Source:
    """What is converted: the model's parts, or a LoRA's layers."""

    path: Path
    kind: FileKind
    configs: Configs
    states: States
    layers: tuple[LoraLayerWeights, ...] = ()
    metadata: Mapping[str, str] | None = None


def target_form(kind: FileKind, out: Path, wanted: Form | None) -> Form:
    """Return the form to convert into: the wanted one, else the one that the source and the destination's name call
    for. Raises DarkroomError where the two do not go together.
    """
    is_file = out.suffix.lower() == ".safetensors"
    if kind.kind == "lora":
        form: Form = wanted or ("peft" if kind.facts.get("form") == "kohya" else "kohya")
        if form not in ("kohya", "peft"):
            raise DarkroomError(f"A LoRA cannot become a {form} model.", advice="Use --to kohya or --to peft.")
    else:
        form = wanted or ("single" if is_file else "folder")
        if form not in ("single", "folder"):
            raise DarkroomError(f"A model cannot become a {form} LoRA.", advice="Use --to single or --to folder.")
    if (form == "folder") == bool(out.suffix.lower() in (".safetensors", ".ckpt", ".pt")):
        raise DarkroomError(
            f"{out.name} is no name for {'a folder' if form == 'folder' else 'a file of that form'}.",
            advice="Files end in .safetensors; a diffusers folder has no such ending.",
        )
    return form


def open_source(path: Path, *, use_ema: bool = False) -> Source:
    """Return what a file or folder holds, opened for conversion. Raises DarkroomError where it cannot be converted."""
    kind = identify(path)
    match kind.kind:
        case "diffusers_folder":
            traits = traits_of(kind)
            parts = tuple(n for n in shipped_configs(traits.model) if n != "scheduler")
            return Source(path, kind, folder_configs(path, parts), folder_states(path, parts))
        case "checkpoint":
            traits_of(kind)
            checkpoint = open_checkpoint(path, kind)
            states = {part: part_state(checkpoint, part, use_ema=use_ema) for part in checkpoint.layouts}
            configs = {**checkpoint.configs, "scheduler": checkpoint.scheduler_config()}
            return Source(path, kind, configs, states, metadata=checkpoint.metadata)
        case "lora":
            return _open_lora(path, kind)
        case _:
            raise DarkroomError(
                f"{path.name} cannot be converted. {kind.sentence}",
                advice="Whole models and LoRA files of SD 1.x, SD 2.x and SDXL can be.",
            )


def convert(
    source: Source,
    out: Path,
    form: Form,
    *,
    dtype: torch.dtype | None,
    created: datetime,
    on_written: OnWritten | None = None,
) -> list[Path]:
    """Write what was opened in another form and return the files and folders written.

    Raises DarkroomError, and leaves what was there, where something is missing or no number.
    """
    if source.kind.kind == "lora":
        return [_write_lora(source, out, form, dtype=dtype, on_written=on_written)]
    traits = traits_of(source.kind)
    told = {n: v for n, v in (source.metadata or {}).items() if not n.startswith("sshs_")}  # hashes of the old bytes
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
        title=told.get("modelspec.title", out.stem),
        created=created,
        metadata=told,
        on_written=on_written,
    )


def _open_lora(path: Path, kind: FileKind) -> Source:
    if kind.facts["form"] not in ("kohya", "diffusers") or not kind.model:
        raise DarkroomError(
            f"{path.name} cannot be converted. {kind.sentence}",
            advice="LoRA files in kohya or diffusers form for SD 1.x, SD 2.x and SDXL can be.",
        )
    stored, metadata = read_stored(path)
    tensors = {name: tensor.make() for name, tensor in stored.items()}
    configs = configs_of_file(kind.model, {}, metadata)
    if kind.facts["form"] == "kohya":
        try:
            names = readable_kohya_names(kind.model, configs)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise DarkroomError(f"The configs that {path.name} brings along cannot be used: {error!r}.") from error
        layers = from_kohya(tensors, names)
    else:
        layers = from_peft(tensors, metadata)
    return Source(path, kind, configs, {}, tuple(layers), metadata)


def _write_lora(
    source: Source, out: Path, form: Form, *, dtype: torch.dtype | None, on_written: OnWritten | None
) -> Path:
    """Write a LoRA. What its metadata told stays, but for the hashes of the old bytes."""
    told = {n: v for n, v in (source.metadata or {}).items() if n not in ("lora_adapter_metadata", "sshs_legacy_hash")}
    told |= {"sshs_model_hash": PAYLOAD_SHA256, "modelspec.hash_sha256": f"0x{PAYLOAD_SHA256}"}
    tensors: Mapping[str, Writable]
    if form == "kohya":
        tensors = to_kohya(source.layers, _checked_naming(source))
        told = _kohya_metadata(source) | told
    else:
        tensors, settings = to_peft(source.layers, peft_name)
        told |= settings
    write_safetensors(out, tensors, told, dtype=dtype, on_written=on_written)
    return out


def _checked_naming(source: Source) -> NameOf:
    name_of = kohya_naming(source.kind.model, source.configs)

    def name(part: str, path: str) -> str:
        try:
            return name_of(part, path)
        except KeyError:
            raise DarkroomError(
                f"The LoRA has a layer that {source.kind.model} models do not have: {part}.{path}; nothing was saved."
            ) from None

    return name


def _kohya_metadata(source: Source) -> dict[str, str]:
    """Return the least that A1111 and Forge read (sd-scripts' minimum set)."""
    ranks = [layer.rank for layer in source.layers] or [0]
    alphas = [layer.alpha for layer in source.layers] or [0.0]
    versions = {"sd1": "sd_v1", "sd2": "sd_v2", "sd2_v": "sd_v2_v", "sdxl": "sdxl_base_v1-0"}
    model = source.kind.model
    return {
        "ss_base_model_version": versions.get(model, model),
        "ss_v2": str(model.startswith("sd2")),
        "ss_network_module": "networks.lora",
        "ss_network_dim": str(max(ranks)),
        "ss_network_alpha": f"{max(alphas):g}",
        "ss_network_args": "{}",
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{architecture_of(model)}/lora",
    }
