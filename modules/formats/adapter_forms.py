"""The forms of adapter files: how each program names the layers of a model. Torch-free.

A form is a record and a line in `FORMS`. Layers are named by the path in diffusers or in the original ("SGM") layout,
with dots or with underscores; a prefix names the part of the model (formats.md 5.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from modules.formats.adapter_names import ALPHA, layer_and_factor

Spelling = Literal["kohya", "peft"]
_FIRST, _SECOND = "text_encoder", "text_encoder_2"


@dataclass(frozen=True, slots=True)
class AdapterForm:
    """A form of adapter files.

    `prefixes` are the beginnings of a layer's name with the part that each names, empty where the name does not say
    which part; the first that matches counts. `spelling` is whose names the factors have; None: either's.
    """

    name: str
    label: str
    prefixes: tuple[tuple[str, str], ...]
    spelling: Spelling | None = None


KOHYA = AdapterForm(
    "kohya",
    "kohya",
    (
        ("lora_unet_", "unet"),
        ("lora_te_", _FIRST),
        ("lora_te1_", _FIRST),
        ("lora_te2_", _SECOND),
        ("oft_unet_", "unet"),
        ("lora_transformer_", "transformer"),
    ),
)
LYCORIS = AdapterForm(
    "lycoris",
    "LyCORIS",
    (
        ("lycoris_unet_", "unet"),
        ("lycoris_te_", _FIRST),
        ("lycoris_te1_", _FIRST),
        ("lycoris_te2_", _SECOND),
        ("lycoris_", ""),
    ),
)
COMFY = AdapterForm(
    "comfy",
    "ComfyUI",
    (
        ("diffusion_model.", "unet"),
        ("model.diffusion_model.", "unet"),
        *(
            (f"{start}{encoder}.{inside}", part)
            for start in ("text_encoders.", "")
            for encoder, part in (("clip_l", _FIRST), ("clip_h", _FIRST), ("clip_g", _SECOND))
            for inside in ("transformer.", "")
        ),
        ("text_encoders.", ""),
    ),
)
RAW_PEFT = AdapterForm(
    "raw_peft",
    "raw PEFT",
    (
        ("base_model.model.unet.", "unet"),
        ("base_model.model.text_encoder_2.", _SECOND),
        ("base_model.model.text_encoder.", _FIRST),
        ("base_model.model.", ""),
    ),
)
_DOTTED = (("unet.", "unet"), ("lora_unet.", "unet"), ("text_encoder_2.", _SECOND), ("text_encoder.", _FIRST), ("", ""))
DIFFUSERS = AdapterForm("diffusers", "diffusers", _DOTTED, "peft")
RAW = AdapterForm("raw", "OneTrainer's raw", _DOTTED, "kohya")

_FORMS = (KOHYA, LYCORIS, COMFY, RAW_PEFT, DIFFUSERS, RAW)
FORMS: Mapping[str, AdapterForm] = {form.name: form for form in _FORMS}


def split_layer(layer: str) -> tuple[str, str]:
    """Return the part that a layer's name in a file names, empty where it names none, and the rest with underscores."""
    for form in _FORMS:
        for prefix, part in form.prefixes:
            if layer.startswith(prefix):
                return part, layer[len(prefix) :].replace(".", "_")
    return "", layer.replace(".", "_")


def form_of(names: Iterable[str]) -> str:
    """Return the form of a file from the names of its tensors, by most of them; empty for a file without layers."""
    counts: Counter[str] = Counter()
    for name in names:
        layer, factor = layer_and_factor(name)
        if layer and factor != ALPHA:
            counts[_form_of_layer(layer, "kohya" if name.endswith(f".{factor}") else "peft")] += 1
    return counts.most_common(1)[0][0] if counts else ""


def _form_of_layer(layer: str, spelling: Spelling) -> str:
    for form in _FORMS:
        if form.spelling in (None, spelling) and any(layer.startswith(prefix) for prefix, _ in form.prefixes):
            return form.name
    return ""
