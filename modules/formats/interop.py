"""Which programs load a file completely: diffusers, ComfyUI, A1111 and Forge, from its names and their key maps.

What each takes is as read in or run on them (their states of early 2026): which tensors a checkpoint has to hold, and
which names of LoRA layers are in a program's map. `complete` is None where it is not known. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.formats.checkpoint_header import CheckpointHeader, read_checkpoint_header
from modules.formats.file_kind import FileKind
from modules.formats.headers import UnreadableFileError
from modules.formats.kinds import identify
from modules.formats.lora_names import kohya_names
from modules.formats.single_file.models import CONFIGS_KEY, PartLayout, configs_of_file, layouts, shipped_configs
from modules.formats.single_file.names import missing_names, original_names
from modules.system.errors import DarkroomError

PROGRAMS = ("diffusers", "ComfyUI", "A1111", "Forge")
_FORGE_TOLERATES = 12  # unmatched keys; with more it refuses the whole file
_LYCORIS = ("LoHa", "LoKr", "GLoRA", "full difference")


@dataclass(frozen=True, slots=True)
class Loads:
    """Whether a program loads a file with nothing left out, and what is to be known about it."""

    program: str
    complete: bool | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the record as data."""
        return {"program": self.program, "complete": self.complete, "note": self.note}


def who_loads_file(path: Path) -> tuple[FileKind, tuple[Loads, ...]]:
    """Return what a file or folder is and which programs load it; what is shown after a save. Never raises."""
    kind = identify(path)
    if kind.kind == "broken" or path.is_dir():
        return kind, who_loads(None, kind)
    try:
        return kind, who_loads(read_checkpoint_header(path), kind)
    except UnreadableFileError:
        return kind, ()


def who_loads(header: CheckpointHeader | None, kind: FileKind) -> tuple[Loads, ...]:
    """Return, for each program, whether it loads a file; empty where nothing is known of such files.

    `header` is None for a folder.
    """
    if kind.kind == "diffusers_folder":
        return _folder(kind)
    if header is None:
        return ()
    rules: Mapping[str, Callable[[CheckpointHeader, FileKind], tuple[Loads, ...]]] = {
        "checkpoint": _checkpoint,
        "lora": _lora,
        "embedding": _embedding,
    }
    rule = rules.get(kind.kind)
    return rule(header, kind) if rule else ()


def _folder(kind: FileKind) -> tuple[Loads, ...]:
    missing = kind.facts.get("missing", "")
    note = f"lacks {missing}" if missing else ""
    rest = (Loads(p, False, "takes single files: convert it") for p in PROGRAMS[1:])
    return Loads("diffusers", not missing, note), *rest


def _checkpoint(header: CheckpointHeader, kind: FileKind) -> tuple[Loads, ...]:
    try:
        parts = layouts(kind.model, configs_of_file(kind.model, header.shapes, header.metadata))
    except DarkroomError as error:
        return tuple(Loads(p, None, error.message) for p in PROGRAMS)
    # Older files leave "text_model." out; diffusers alone does not know them.
    lacks = _lacking(parts, header.shapes), _lacking(parts, original_names(header.shapes))
    if any(lacks):
        advice = "; choose a VAE there" if set(lacks[1]) == {"vae"} else ""
        return tuple(_incomplete(p, lacks[0 if p == "diffusers" else 1], advice) for p in PROGRAMS)
    if "code" in kind.facts:
        return tuple(Loads(p, False, "it names code besides weights") for p in PROGRAMS)
    return tuple(Loads(p, True, _prediction_note(p, kind)) for p in PROGRAMS)


def _lacking(parts: Mapping[str, PartLayout], names: Iterable[str]) -> dict[str, int]:
    names = list(names)
    counts = {part: len(missing_names(layout, names)) for part, layout in parts.items()}
    return {part: count for part, count in counts.items() if count}


def _incomplete(program: str, lacks: Mapping[str, int], advice: str) -> Loads:
    if not lacks:
        return Loads(program, True)
    told = ", ".join(f"{count} weights of the {part}" for part, count in lacks.items())
    return Loads(program, False, f"lacks {told}{'' if program == 'diffusers' else advice}")


def _prediction_note(program: str, kind: FileKind) -> str:
    """Return what a person has to do so that a program samples with the right prediction."""
    if kind.prediction != "v_prediction":
        return ""
    if program == "diffusers":
        snr = ", rescale_betas_zero_snr=True" if kind.zero_snr else ""
        told = kind.model == "sd2_v" and not kind.zero_snr
        return "" if told else f'give it a scheduler with prediction_type="v_prediction"{snr}'
    if kind.model.startswith("sdxl"):
        return "" if "v_pred" in kind.facts.get("prediction_from", "") else "has no v_pred marker: set it by hand"
    if program == "ComfyUI":
        return "" if kind.model == "sd2_v" else "add a ModelSamplingDiscrete node set to v_prediction"
    sidecar = kind.facts.get("prediction_from", "").endswith((".yaml", ".yml"))
    return "keep the .yaml beside it" if sidecar else "" if kind.model == "sd2_v" else "needs a .yaml beside it"


def _lora(header: CheckpointHeader, kind: FileKind) -> tuple[Loads, ...]:
    form, adapter = kind.facts.get("form", ""), kind.facts.get("adapter", "")
    match form:
        case "kohya":
            return _kohya(header, kind, adapter)
        case "diffusers":
            return _peft(header)
        case "lycoris":
            known = {"ComfyUI": True, "Forge": True}
            return tuple(
                Loads(p, known.get(p, False), "" if p in known else "does not know the form") for p in PROGRAMS
            )
        case "comfy":
            return tuple(Loads(p, True) if p == "ComfyUI" else Loads(p, None, "not known") for p in PROGRAMS)
        case _:
            return ()


def _kohya(header: CheckpointHeader, kind: FileKind, adapter: str) -> tuple[Loads, ...]:
    layers = {n.split(".", 1)[0] for n in header.shapes if not n.startswith("bundle_emb.")}
    matched = layers
    if kind.model:
        matched = layers & _known_names(kind.model, header)
    strange = len(layers) - len(matched)
    found = []
    for program in PROGRAMS:
        note = f"{strange} of {len(layers)} layers have names it does not know" if strange else ""
        if program == "diffusers":
            note = note or _diffusers_on_kohya(header, kind, matched, adapter)
        elif "OFT" in adapter and (program == "Forge" or not any(n.endswith("oft_blocks") for n in header.shapes)):
            note = note or "does not load this OFT"
        elif program == "Forge" and "embeddings" in kind.facts:
            note = note or "leaves the bundled embedding out"
        if not note and CONFIGS_KEY in header.metadata and program != "diffusers":
            found.append(Loads(program, None, "made for a model of another size than the published ones"))
        else:
            found.append(Loads(program, not note, note))
    return tuple(found)


def _known_names(model: str, header: CheckpointHeader) -> set[str]:
    """Return the kohya names of a model's layers: of the one that the file says it is for, where it says so."""
    for configs in (configs_of_file(model, {}, header.metadata), shipped_configs(model)):
        with suppress(KeyError, TypeError, ValueError, AttributeError, IndexError):  # what a file says may be nonsense
            return set(kohya_names(model, configs, sgm=True) | kohya_names(model, configs, sgm=False))
    return set()


def _diffusers_on_kohya(header: CheckpointHeader, kind: FileKind, layers: set[str], adapter: str) -> str:
    if "embeddings" in kind.facts:
        return "refuses files with bundled embeddings"
    if any(sort in adapter for sort in (*_LYCORIS, "OFT")):
        return f"does not load {adapter}"
    if "DoRA" in adapter:
        return "leaves the DoRA scales out"
    if kind.facts.get("names") == "mixed":
        return "leaves out the layers with SGM names"
    if {"lora_unet_add_embedding_linear_1", "lora_unet_add_embedding_linear_2"} <= layers:
        return "mixes up the two layers of add_embedding; with SGM names it would not"
    return ""


def _peft(header: CheckpointHeader) -> tuple[Loads, ...]:
    if any(n.endswith(".alpha") for n in header.shapes):
        known = {"diffusers": Loads("diffusers", False, "refuses alpha tensors in this form")}
    else:
        known = {"diffusers": Loads("diffusers", True)}
    layers = {n.rsplit(".lora_", 1)[0] for n in header.shapes if ".lora_" in n}
    attention = [n for n in layers if n.startswith("unet.") and (".attn1.to_" in n or ".attn2.to_" in n)]
    if attention:
        note = f"{len(attention)} of {len(layers)} layers, the attention, are not in its map; use the kohya form"
        known["ComfyUI"] = Loads("ComfyUI", False, note)
        if len(attention) > _FORGE_TOLERATES:
            known["Forge"] = Loads("Forge", False, "refuses the file; use the kohya form")
    else:
        known["ComfyUI"] = Loads("ComfyUI", True)
    return tuple(known.get(p, Loads(p, None, "not known; the kohya form is safe")) for p in PROGRAMS)


def _embedding(header: CheckpointHeader, kind: FileKind) -> tuple[Loads, ...]:
    if kind.model == "sdxl":
        both = {"clip_l", "clip_g"} <= header.shapes.keys()
        note = "" if both else "needs clip_l and clip_g both"
        return (
            Loads("diffusers", False, "wants each of its tensors passed separately, with a token"),
            Loads("ComfyUI", True),
            Loads("A1111", both, note),
            Loads("Forge", both, note),
        )
    single = len(header.shapes) == 1 or header.container == "pickle"
    note = "" if single else "needs exactly one tensor"
    token = "" if header.container == "pickle" else "its token is the tensor's name, unless token= is passed"
    return (
        Loads("diffusers", True, token),
        Loads("ComfyUI", True),
        Loads("A1111", single, note),
        Loads("Forge", single, note),
    )
