"""Which programs load a LoRA file completely, by its form and the names of its layers. Torch-free."""

from __future__ import annotations

from contextlib import suppress

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import Loads
from modules.families.parts.single_file.models import CONFIGS_KEY, configs_of_file
from modules.families.published import ALL_PROGRAMS
from modules.families.registry import published
from modules.formats.checkpoint_header import CheckpointHeader

_FORGE_TOLERATES = 12  # unmatched keys; with more it refuses the whole file
_LYCORIS = ("LoHa", "LoKr", "GLoRA", "full difference")


def lora_loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return, for each program that supports the LoRA's model, whether it loads the LoRA."""
    if header is None:
        return ()
    programs = published(kind.model).programs if kind.model else ALL_PROGRAMS
    return tuple(found for found in _by_form(header, kind) if found.program in programs)


def _by_form(header: CheckpointHeader, kind: FileKind) -> tuple[Loads, ...]:
    form, adapter = kind.facts.get("form", ""), kind.facts.get("adapter", "")
    match form:
        case "kohya":
            return _kohya(header, kind, adapter)
        case "diffusers":
            return _peft(header)
        case "lycoris":
            known = {"ComfyUI": True, "Forge": True}
            return tuple(
                Loads(p, known.get(p, False), "" if p in known else "does not support this form") for p in ALL_PROGRAMS
            )
        case "comfy":
            return tuple(Loads(p, True) if p == "ComfyUI" else Loads(p, None, "unknown") for p in ALL_PROGRAMS)
        case _:
            return ()


def _kohya(header: CheckpointHeader, kind: FileKind, adapter: str) -> tuple[Loads, ...]:
    layers = {n.split(".", 1)[0] for n in header.shapes if not n.startswith("bundle_emb.")}
    matched = layers
    if kind.model:
        matched = layers & _known_names(kind.model, header)
    unknown = len(layers) - len(matched)
    found = []
    for program in ALL_PROGRAMS:
        note = f"{unknown} of {len(layers)} layers have unknown names" if unknown else ""
        if program == "diffusers":
            note = note or _diffusers_on_kohya(header, kind, matched, adapter)
        elif "OFT" in adapter and (program == "Forge" or not any(n.endswith("oft_blocks") for n in header.shapes)):
            note = note or "does not support this OFT"
        elif program == "Forge" and "embeddings" in kind.facts:
            note = note or "ignores the bundled embedding"
        if not note and CONFIGS_KEY in header.metadata and program != "diffusers":
            found.append(Loads(program, None, "made for a model of a different size than the published ones"))
        else:
            found.append(Loads(program, not note, note))
    return tuple(found)


def _known_names(model: str, header: CheckpointHeader) -> set[str]:
    """Return the kohya names of a model's layers, from the configs in the file's metadata where it has them."""
    record = published(model)
    for configs in (configs_of_file(model, {}, header.metadata), record.shipped_configs()):
        with suppress(KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):  # invalid metadata
            return set(record.lora.known(configs))
    return set()


def _diffusers_on_kohya(header: CheckpointHeader, kind: FileKind, layers: set[str], adapter: str) -> str:
    if "embeddings" in kind.facts:
        return "rejects files with bundled embeddings"
    if any(sort in adapter for sort in (*_LYCORIS, "OFT")):
        return f"does not support {adapter}"
    if "DoRA" in adapter:
        return "ignores the DoRA scales"
    if kind.facts.get("names") == "mixed":
        return "ignores the layers with SGM names"
    if {"lora_unet_add_embedding_linear_1", "lora_unet_add_embedding_linear_2"} <= layers:
        return "confuses the two layers of add_embedding; use SGM names"
    return ""


def _peft(header: CheckpointHeader) -> tuple[Loads, ...]:
    if any(n.endswith(".alpha") for n in header.shapes):
        known = {"diffusers": Loads("diffusers", False, "rejects alpha tensors in this form")}
    else:
        known = {"diffusers": Loads("diffusers", True)}
    layers = {n.rsplit(".lora_", 1)[0] for n in header.shapes if ".lora_" in n}
    attention = [n for n in layers if n.startswith("unet.") and (".attn1.to_" in n or ".attn2.to_" in n)]
    if attention:
        note = f"ignores {len(attention)} of {len(layers)} layers (attention); use the kohya form"
        known["ComfyUI"] = Loads("ComfyUI", False, note)
        if len(attention) > _FORGE_TOLERATES:
            known["Forge"] = Loads("Forge", False, "rejects the file; use the kohya form")
    else:
        known["ComfyUI"] = Loads("ComfyUI", True)
    return tuple(known.get(p, Loads(p, None, "unknown; the kohya form is safe")) for p in ALL_PROGRAMS)
