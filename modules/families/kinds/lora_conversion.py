"""Reads an adapter file of any form and writes it in kohya or PEFT form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import torch

from modules.families.kinds.adapter_contents import unusual_alphas
from modules.families.kinds.conversion import Source
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.lora_model import INVALID_CONFIGS
from modules.families.kinds.record import Form
from modules.families.parts.lora_names import comfy_naming, kohya_naming, peft_name
from modules.families.parts.single_file.models import configs_of_file
from modules.families.published import PublishedModel
from modules.families.registry import FAMILIES, published_model
from modules.formats import lora_files
from modules.formats.adapter_file import AdapterFile, adapter_file, read_adapter_tensors
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_names import DOWN, LORA_FACTORS, MID, second_copies
from modules.formats.adapter_types import ALPHA, DORA_SCALE, adapter_type, adapter_types
from modules.formats.fused_changes import join
from modules.formats.fused_layers import RANKS_KEY
from modules.formats.peft_settings import PEFT_SETTINGS
from modules.formats.program_table import diffusers_loses_alpha
from modules.formats.safetensors_io import CONVERTED, PAYLOAD_SHA256, OnWritten, Writable, write_safetensors
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.problem import agree, count


def open_lora(path: Path, kind: FileKind, *, use_ema: bool = False) -> Source:
    """Return the content of an adapter file of any form.

    Raises DarkroomError if its model is not known, or if none of its layers belongs to that model.
    """
    if not kind.model:
        labels = ", ".join(spec.label for spec in FAMILIES.values())
        raise DarkroomError(
            f"{path.name} cannot be converted. {kind.sentence}", advice=f"Choose a LoRA file for {labels}."
        )
    tensors, metadata = read_adapter_tensors(path)
    try:
        configs = configs_of_file(kind.model, {}, metadata)
        targets = published_model(kind.model).adapter_targets(configs)
    except INVALID_CONFIGS as error:
        raise DarkroomError(
            f"The model configs in the metadata of {path.name} are not valid: {plain_reason(error)}.",
            advice="The file is damaged. Download it again.",
        ) from error
    content = adapter_file(tensors, metadata, targets, where=path.name)
    if not content.layers:
        raise DarkroomError(f"{path.name} cannot be converted: {kind.model} models have none of its layers.")
    return Source(path, kind, configs, {}, content, metadata)


def write_lora(
    source: Source,
    out: Path,
    form: Form,
    *,
    dtype: torch.dtype | None,
    created: datetime,
    on_written: OnWritten | None = None,
) -> list[Path]:
    """Write an adapter file. `notes` returns the losses of the form. Metadata that stay true are kept.

    Raises DarkroomError if the form can hold none of its layers.
    """
    adapter = _content(source)
    tensors: Mapping[str, Writable]
    settings: dict[str, str] = {}
    layers: Sequence[AdapterLayer] = adapter.layers
    if form != "peft":
        naming = comfy_naming if form == "comfyui" else kohya_naming
        name_of = naming(source.kind.model, source.configs)
        copies = _copies(source)
        others = {name: tensor for name, tensor in adapter.extra_tensors.items() if name not in copies}
        joined, settings = join(layers, published_model(source.kind.model).adapter_targets(source.configs).matrices)
        named = lora_files.to_kohya(joined, name_of)
        tensors = {**others, **(lora_files.with_letters(named) if form == "comfyui" else named)}
    else:
        layers = _held_by_peft(source)
        tensors, settings = lora_files.to_peft(layers, peft_name)
    metadata = convert_metadata(source.metadata or {}, layers, published_model(source.kind.model), form)
    write_safetensors(out, tensors, metadata | settings, dtype=dtype, on_written=on_written, advice=CONVERTED)
    return [out]


def notes(source: Source, form: Form) -> tuple[str, ...]:
    """Return a sentence for everything that the form changes or cannot hold; empty if everything is kept unchanged."""
    adapter = _content(source)
    sentences = []
    if form != "peft":
        if wrong := _lost_alphas(adapter.layers):
            where = f"in the attention or in a text encoder {agree(wrong, 'has')}"
            sentences.append(
                f"{count(wrong, 'layer')} {where} another alpha than most layers of "
                "their part, which diffusers does not use. For diffusers, use --to peft."
            )
        if broken := _incomplete(adapter):
            sentences.append(f"{_about_incomplete(broken)} Kept as in the file.")
        copies = _copies(source)
        if copies:
            sentences.append(
                f"The file names layers twice. The first copy is kept, and {count(len(copies), 'tensor')} of the "
                f"second left out, such as {copies[0]}."
            )
        return (*sentences, *_about_unplaced(adapter, "They are kept under their names.", copies))
    held = _held_by_peft(source)
    broken = _incomplete(adapter)
    if broken:
        sentences.append(f"{_about_incomplete(broken)} Left out.")
    if lost := len(adapter.layers) - len(held) - len(broken):
        layers = f"{lost} of {count(len(adapter.layers), 'layer')} {agree(lost, 'is')}"
        sentences.append(
            f"{layers} left out: the PEFT form holds LoRA and DoRA per output only. The kohya form holds them."
        )
    if middles := sum(MID in layer.factors for layer in held):
        sentences.append(
            f"The Tucker core of {count(middles, 'layer')} is folded into the down matrix, which rounds it."
        )
    if strengths := sorted({layer.scale for layer in held} - {1.0}):
        listed = ", ".join(f"{strength:g}" for strength in strengths[:3]) + (", ..." if len(strengths) > 3 else "")
        sentences.append(
            f"The strength (alpha by rank: {listed}) is in the metadata, which diffusers reads since 0.34. "
            "Older versions and other programs use strength 1; the kohya form stores the strength with each layer."
        )
    if adapter.embeddings:
        sentences.append("The bundled embeddings are left out: diffusers rejects files with embeddings.")
    return (*sentences, *_about_unplaced(adapter, "They are left out."))


def _incomplete(adapter: AdapterFile) -> list[AdapterLayer]:
    return [layer for layer in adapter.layers if lora_files.is_incomplete(layer)]


def _about_incomplete(layers: Sequence[AdapterLayer]) -> str:
    first = f"{layers[0].part}.{layers[0].path}"
    return f"Incomplete layers, with a missing matrix or with two that do not fit: {len(layers)}, such as {first}."


def _lost_alphas(layers: Sequence[AdapterLayer]) -> int:
    """Return the number of layers of a kohya file for which diffusers uses the alpha of other layers."""
    loras = [layer for layer in layers if DOWN in layer.factors]
    wrong = 0
    for part in {layer.part for layer in loras}:
        by_path = {layer.path: layer for layer in loras if layer.part == part}
        ranks, alphas = {p: x.rank for p, x in by_path.items()}, {p: x.lora_alpha for p, x in by_path.items()}
        wrong += sum(diffusers_loses_alpha(part, path) for path in unusual_alphas(ranks, alphas))
    return wrong


def _copies(source: Source) -> list[str]:
    """Return the tensors of second copies of layers: in the kohya form, the first copy is written under their name."""
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
    held = [layer for layer in adapter.layers if lora_files.fits_peft(layer) and not lora_files.is_incomplete(layer)]
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


_STALE = frozenset({PEFT_SETTINGS, RANKS_KEY, "sshs_legacy_hash"})  # they describe the tensors of the old file
_LOCON = "locon"  # LyCORIS' name of LoRA on linear layers and convolutions
_NORMS = frozenset({"w_norm", "b_norm"})
_TUCKER_ARGS, _NORM_ARGS = ("use_tucker", "use_cp"), ("train_norm",)


def convert_metadata(
    old: Mapping[str, str], layers: Sequence[AdapterLayer], record: PublishedModel, form: Form
) -> dict[str, str]:
    """Return the metadata of a file with these layers, without the settings that its form needs.

    sd-scripts' minimum set is added in kohya form, because A1111 and Forge read it. Rank and alpha are replaced if no
    layer has the values of the old file.
    """
    metadata = {name: value for name, value in old.items() if name not in _STALE}
    if form != "peft":
        module, args = _network(layers)
        metadata = {
            "ss_base_model_version": record.kohya_name,
            "ss_v2": str(record.is_v2),
            "ss_network_module": module,
            "ss_network_args": json.dumps(args),
            "modelspec.sai_model_spec": "1.0.1",
            "modelspec.architecture": f"{record.architecture}/lora",
        } | metadata
    if usual := lora_files.rank_and_alpha(layers):
        ranks, alphas = zip(*lora_files.ranks_and_alphas(layers), strict=True)
        for name, used, value in (("ss_network_dim", ranks, usual[0]), ("ss_network_alpha", alphas, usual[1])):
            if (form != "peft" or name in metadata) and not _is_among(metadata.get(name, ""), used):
                metadata[name] = f"{value:g}"
    if form == "peft" and "ss_network_args" in metadata:
        metadata["ss_network_args"] = _plain_args(metadata["ss_network_args"])
    return metadata | {"sshs_model_hash": PAYLOAD_SHA256, "modelspec.hash_sha256": f"0x{PAYLOAD_SHA256}"}


def _is_among(text: str, values: Sequence[float]) -> bool:
    try:
        return float(text) in values
    except ValueError:
        return False


def _network(layers: Sequence[AdapterLayer]) -> tuple[str, dict[str, str]]:
    """Return the module and the arguments with which kohya's trainers would make such layers."""
    factors = {factor for layer in layers for factor in layer.factors}
    # Any network can train norms; a file with plain LoRA and another type comes from a network of the other type.
    known = adapter_type(factors - LORA_FACTORS - _NORMS - {ALPHA})
    args = {"algo": known.algo if known is not None and known.algo else _LOCON}
    if any(t.has_tucker_core(factors) for t in adapter_types()):
        args["use_tucker"] = "True"
    if "w_norm" in factors:
        args["train_norm"] = "True"
    if DORA_SCALE in factors:
        args["dora_wd"] = "True"
    return ("networks.lora", {}) if args == {"algo": _LOCON} else ("lycoris.kohya", args)


def _plain_args(text: str) -> str:
    """Return `ss_network_args` without what the PEFT form does not hold: Tucker's form and trained norms."""
    try:
        args = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(args, dict):
        return text
    return json.dumps({name: value for name, value in args.items() if name not in (*_TUCKER_ARGS, *_NORM_ARGS)})
