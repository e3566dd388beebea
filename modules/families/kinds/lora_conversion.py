"""Reads an adapter file of any form and writes it in kohya or PEFT form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import torch

from modules.families.kinds.adapter_programs import unusual_alphas
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.lora_metadata import converted_metadata
from modules.families.kinds.lora_model import INVALID_CONFIGS
from modules.families.kinds.record import Form
from modules.families.kinds.source import Source
from modules.families.parts.lora_names import kohya_naming, peft_name
from modules.families.parts.single_file.models import configs_of_file
from modules.families.registry import FAMILIES, published
from modules.formats.adapter_file import AdapterFile, adapter_file, read_adapter_tensors
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN, MID, second_copies
from modules.formats.lora_files import fits_peft, is_incomplete, to_kohya, to_peft
from modules.formats.program_table import diffusers_loses_alpha
from modules.formats.safetensors_io import CONVERTED, OnWritten, Writable, write_safetensors
from modules.system.errors import DarkroomError
from modules.system.problem import count


def open_lora(path: Path, kind: FileKind, *, use_ema: bool = False) -> Source:
    """Return the content of an adapter file of any form.

    Raises DarkroomError where its model is not known, or where no layer of it belongs to that model.
    """
    if not kind.model:
        labels = ", ".join(spec.label for spec in FAMILIES.values())
        raise DarkroomError(
            f"{path.name} cannot be converted. {kind.sentence}", advice=f"Choose a LoRA file for {labels}."
        )
    tensors, metadata = read_adapter_tensors(path)
    try:
        configs = configs_of_file(kind.model, {}, metadata)
        targets = published(kind.model).adapter_targets(configs)
    except INVALID_CONFIGS as error:
        raise DarkroomError(
            f"The model configs in the metadata of {path.name} are not valid: {error!r}.",
            advice="The file is damaged. Download it again.",
        ) from error
    found = adapter_file(tensors, metadata, targets, where=path.name)
    if not found.layers:
        raise DarkroomError(f"{path.name} cannot be converted: {kind.model} models have none of its layers.")
    return Source(path, kind, configs, {}, found, metadata)


def write_lora(
    source: Source,
    out: Path,
    form: Form,
    *,
    dtype: torch.dtype | None,
    created: datetime,
    on_written: OnWritten | None = None,
) -> list[Path]:
    """Write an adapter file. `notes` returns what the form cannot hold. Its metadata is kept where it stays true.

    Raises DarkroomError where the form can hold no layer of it.
    """
    adapter = _content(source)
    tensors: Mapping[str, Writable]
    settings: dict[str, str] = {}
    layers: Sequence[AdapterLayer] = adapter.layers
    if form == "kohya":
        name_of = kohya_naming(source.kind.model, source.configs)
        copies = _copies(source)
        others = {name: tensor for name, tensor in adapter.extra_tensors.items() if name not in copies}
        tensors = {**others, **to_kohya(layers, name_of)}
    else:
        layers = _held_by_peft(source)
        tensors, settings = to_peft(layers, peft_name)
    metadata = converted_metadata(source.metadata or {}, layers, published(source.kind.model), form)
    write_safetensors(out, tensors, metadata | settings, dtype=dtype, on_written=on_written, advice=CONVERTED)
    return [out]


def notes(source: Source, form: Form) -> tuple[str, ...]:
    """Return what the form changes or cannot hold, a sentence each; nothing where everything is kept as it is."""
    adapter = _content(source)
    found = []
    if form == "kohya":
        if wrong := _lost_alphas(adapter.layers):
            where = f"in the attention or in a text encoder {'has' if wrong == 1 else 'have'}"
            found.append(
                f"{count(wrong, 'layer')} {where} another alpha than most layers of "
                "their part, which diffusers does not use: use --to peft for it."
            )
        if broken := _incomplete(adapter):
            found.append(f"{_about_incomplete(broken)} Kept as in the file.")
        copies = _copies(source)
        if copies:
            found.append(
                f"The file names layers twice. The first copy is kept, and {count(len(copies), 'tensor')} of the "
                f"second left out, such as {copies[0]}."
            )
        return (*found, *_about_unplaced(adapter, "They are kept under their names.", copies))
    held = _held_by_peft(source)
    broken = _incomplete(adapter)
    if broken:
        found.append(f"{_about_incomplete(broken)} Left out.")
    if lost := len(adapter.layers) - len(held) - len(broken):
        layers = f"{lost} of {count(len(adapter.layers), 'layer')} {'is' if lost == 1 else 'are'}"
        found.append(
            f"{layers} left out: the PEFT form holds LoRA and DoRA per output only. The kohya form holds them."
        )
    if middles := sum(MID in layer.factors for layer in held):
        found.append(f"The Tucker middle of {count(middles, 'layer')} is folded into the down matrix, which rounds it.")
    if strengths := sorted({layer.scale for layer in held} - {1.0}):
        listed = ", ".join(f"{strength:g}" for strength in strengths[:3]) + (", ..." if len(strengths) > 3 else "")
        found.append(
            f"The strength (alpha by rank: {listed}) is in the metadata, which diffusers reads since 0.34. "
            "Older versions and other programs use strength 1; the kohya form has the strength beside each layer."
        )
    if adapter.embeddings:
        found.append("The bundled embeddings are left out: diffusers rejects files with embeddings.")
    return (*found, *_about_unplaced(adapter, "They are left out."))


def _incomplete(adapter: AdapterFile) -> list[AdapterLayer]:
    return [layer for layer in adapter.layers if is_incomplete(layer)]


def _about_incomplete(layers: Sequence[AdapterLayer]) -> str:
    first = f"{layers[0].part}.{layers[0].path}"
    return f"Incomplete layers, with a missing matrix or with two that do not fit: {len(layers)}, such as {first}."


def _lost_alphas(layers: Sequence[AdapterLayer]) -> int:
    """Return for how many layers of a kohya file diffusers uses the alpha of others."""
    loras = [layer for layer in layers if DOWN in layer.factors]
    wrong = 0
    for part in {layer.part for layer in loras}:
        own = {layer.path: layer for layer in loras if layer.part == part}
        ranks, alphas = {p: x.rank for p, x in own.items()}, {p: x.lora_alpha for p, x in own.items()}
        wrong += sum(diffusers_loses_alpha(part, path) for path in unusual_alphas(ranks, alphas))
    return wrong


def _copies(source: Source) -> list[str]:
    """Return the tensors that the kohya form has no name for: their layers are written under it from another copy."""
    name_of = kohya_naming(source.kind.model, source.configs)
    adapter = _content(source)
    return second_copies(adapter.extra_tensors, {name_of(layer.part, layer.path) for layer in adapter.layers})


def _about_unplaced(adapter: AdapterFile, outcome: str, copies: Sequence[str] = ()) -> tuple[str, ...]:
    others = [n for n in adapter.extra_tensors if n not in adapter.embeddings and n not in copies]
    if not others:
        return ()
    return (f"Tensors that belong to no layer of the model: {len(others)}, such as {others[0]}. {outcome}",)


def _content(source: Source) -> AdapterFile:
    assert source.adapter is not None  # `open_lora` read it
    return source.adapter


def _held_by_peft(source: Source) -> list[AdapterLayer]:
    adapter = _content(source)
    held = [layer for layer in adapter.layers if fits_peft(layer) and not is_incomplete(layer)]
    broken = _incomplete(adapter)
    if not held and len(broken) == len(adapter.layers):
        raise DarkroomError(
            f"{source.path.name} cannot be converted into the PEFT form. {_about_incomplete(broken)}",
            advice="The file is damaged: download it again, or choose another one.",
        )
    if not held:
        raise DarkroomError(
            f"{source.path.name} cannot be converted into the PEFT form, which holds only LoRA and DoRA per output. "
            f"{source.kind.sentence}",
            advice="Use --to kohya.",
        )
    return held
