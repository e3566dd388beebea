"""The table of how each program names the layers of a model in adapter files.

A form is a record and a line in `_FORMS`. A layer's name is a prefix, which names the part of the model, and the path
in one of the layouts, with dots, or with underscores after a prefix that ends in one: the same layer of SDXL is
`lora_unet_input_blocks_4_1_proj_in` and `unet.down_blocks.1.attentions.0.proj_in`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from modules.formats.adapter_names import layer_and_factor
from modules.formats.adapter_types import ALPHA

FileForm = Literal["kohya", "comfyui", "diffusers"]
"""The forms in which our files are written."""
Spelling = Literal["kohya", "peft"]
Layout = Literal["diffusers", "original", "comfyui", "with part", "text", "bare text"]
"""How a path is written: a denoiser's as in diffusers or in the original ("SGM") layout, a text encoder's with
"text_model." or without it. "comfyui" is a denoiser's path in ComfyUI's checkpoints if these are neither,
"with part" the path of another part in the denoiser's files, with the part's name before it."""
Naming = Literal[
    "kohya, SGM names",
    "kohya, diffusers names",
    "kohya, ComfyUI's names",
    "OneTrainer, lora_transformer_",
    "kohya, text",
    "kohya, lora_te1_ for lora_te_",
    "kohya, lora_te_ for lora_te1_",
    "kohya, text without text_model",
    "OFT of sd-scripts",
    "SimpleTuner",
    "PEFT, denoiser",
    "PEFT, text",
    "PEFT, text without text_model",
    "before PEFT, denoiser",
    "before PEFT, text",
    "PEFT, denoiser without its prefix",
    "other factors in PEFT names",
    "raw PEFT",
    "ComfyUI, original names",
    "ComfyUI, diffusers names",
    "ComfyUI, text",
    "kohya, SGM and diffusers names",
    "other",
    "unknown",
]
"""The namings that programs tell apart. "other": a naming that is read here, but with which no program was measured;
"unknown": the model has no layer of this name."""
DENOISER = "denoiser"
"""The denoiser in prefixes: families name this part differently ("unet", "transformer"), but programs ignore that."""
_FIRST, _SECOND, _THIRD = "text_encoder", "text_encoder_2", "text_encoder_3"


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of the names of a part's layers; `part` is `DENOISER` or a text encoder, empty if it does not tell.

    `namings` are by the layout of the path after the prefix; for any other layout the naming is "other".
    """

    start: str
    part: str = ""
    namings: Mapping[Layout, Naming] = field(default_factory=dict)

    def name_of(self, path: str) -> str:
        """Return the name of the layer with a dotted path."""
        return f"{self.start}{path.replace('.', '_') if self.start.endswith('_') else path}"


@dataclass(frozen=True, slots=True)
class AdapterForm:
    """A form of adapter files. The first prefix that matches counts; `spelling` is whose names the factors have (None:
    either).
    """

    name: str
    label: str
    prefixes: tuple[Prefix, ...]
    spelling: Spelling | None = None


_KOHYA_UNET: Mapping[Layout, Naming] = {
    "diffusers": "kohya, diffusers names",
    "original": "kohya, SGM names",
    "comfyui": "kohya, ComfyUI's names",
}
_KOHYA_TEXT: Mapping[Layout, Naming] = {"text": "kohya, text", "bare text": "kohya, text without text_model"}
_OFT: Mapping[Layout, Naming] = {"diffusers": "OFT of sd-scripts", "original": "OFT of sd-scripts"}
KOHYA = AdapterForm(
    "kohya",
    "kohya",
    (
        Prefix("lora_unet_", DENOISER, _KOHYA_UNET),
        Prefix("lora_te_", _FIRST, _KOHYA_TEXT),
        Prefix("lora_te1_", _FIRST, _KOHYA_TEXT),
        Prefix("lora_te2_", _SECOND, _KOHYA_TEXT),
        Prefix("lora_te3_", "", _KOHYA_TEXT),  # a T5, the last of the text encoders
        Prefix("oft_unet_", DENOISER, _OFT),
        Prefix("lora_transformer_", DENOISER, {"diffusers": "OneTrainer, lora_transformer_"}),
        Prefix("lora_prior_unet_", DENOISER, _KOHYA_UNET),
        Prefix("lora_prior_te_", _FIRST, _KOHYA_TEXT),
    ),
)
LYCORIS = AdapterForm(
    "lycoris",
    "LyCORIS",
    (
        Prefix("lycoris_unet_", DENOISER),
        Prefix("lycoris_te_", _FIRST),
        Prefix("lycoris_te1_", _FIRST),
        Prefix("lycoris_te2_", _SECOND),
        Prefix("lycoris_te3_"),
        Prefix("lycoris_", "", {"diffusers": "SimpleTuner"}),
    ),
)
_COMFY_DENOISER: Mapping[Layout, Naming] = {
    "diffusers": "ComfyUI, diffusers names",
    "original": "ComfyUI, original names",
    "comfyui": "ComfyUI, original names",
}
_ENCODERS = (("clip_l", _FIRST), ("clip_h", _FIRST), ("clip_g", _SECOND), ("t5xxl", ""))
COMFY = AdapterForm(
    "comfy",
    "ComfyUI",
    (
        Prefix("diffusion_model.", DENOISER, _COMFY_DENOISER),
        Prefix("model.diffusion_model.", DENOISER),
        *(Prefix(f"text_encoders.{x}.transformer.", part, {"text": "ComfyUI, text"}) for x, part in _ENCODERS),
        *(Prefix(f"text_encoders.{x}.", part) for x, part in _ENCODERS),
        *(Prefix(f"{x}.{inside}", part) for x, part in _ENCODERS for inside in ("transformer.", "")),
        Prefix("text_encoders."),
    ),
)
_RAW_PEFT: Mapping[Layout, Naming] = {"diffusers": "raw PEFT", "text": "raw PEFT", "bare text": "raw PEFT"}
RAW_PEFT = AdapterForm(
    "raw_peft",
    "raw PEFT",
    (
        Prefix("base_model.model.unet.", DENOISER, _RAW_PEFT),
        Prefix("base_model.model.transformer.", DENOISER, _RAW_PEFT),
        Prefix("base_model.model.prior.", DENOISER, _RAW_PEFT),
        Prefix("base_model.model.text_encoder_3.", _THIRD, _RAW_PEFT),
        Prefix("base_model.model.text_encoder_2.", _SECOND, _RAW_PEFT),
        Prefix("base_model.model.text_encoder.", _FIRST, _RAW_PEFT),
        Prefix("base_model.model.", "", {**_RAW_PEFT, "with part": "raw PEFT"}),
    ),
)
_PEFT_TEXT: Mapping[Layout, Naming] = {"text": "PEFT, text", "bare text": "PEFT, text without text_model"}
_DOTTED = (
    Prefix("unet.", DENOISER, {"diffusers": "PEFT, denoiser"}),
    Prefix("transformer.", DENOISER, {"diffusers": "PEFT, denoiser"}),
    Prefix("prior.", DENOISER, {"diffusers": "PEFT, denoiser"}),
    Prefix("lora_unet.", DENOISER),
    Prefix("text_encoder_3.", _THIRD, _PEFT_TEXT),
    Prefix("text_encoder_2.", _SECOND, _PEFT_TEXT),
    Prefix("text_encoder.", _FIRST, _PEFT_TEXT),
    Prefix("", "", {"diffusers": "PEFT, denoiser without its prefix", "with part": "PEFT, denoiser"}),
)
DIFFUSERS = AdapterForm("diffusers", "diffusers", _DOTTED, "peft")
RAW = AdapterForm("raw", "OneTrainer's raw", _DOTTED, "kohya")

_FORMS = (KOHYA, LYCORIS, COMFY, RAW_PEFT, DIFFUSERS, RAW)
FORMS: Mapping[str, AdapterForm] = {form.name: form for form in _FORMS}
_PREFIXES: Mapping[str, Prefix] = {prefix.start: prefix for form in _FORMS for prefix in form.prefixes}
_FORMS_OF = {start: tuple(f for f in _FORMS if start in {p.start for p in f.prefixes}) for start in _PREFIXES}
_STARTS = re.compile("|".join(re.escape(start) for start in _PREFIXES if start))


def split_layer(layer: str) -> tuple[Prefix, str]:
    """Return the prefix of a layer's name in a file, and the path after it with underscores for dots."""
    match = _STARTS.match(layer)
    prefix = _PREFIXES[match[0] if match else ""]
    return prefix, layer[len(prefix.start) :].replace(".", "_")


def form_of(names: Iterable[str]) -> str:
    """Return the form of a file from the names of its tensors, by most of them; empty for a file without layers."""
    counts: Counter[str] = Counter()
    for name in names:
        layer, factor = layer_and_factor(name)
        if layer and factor != ALPHA:
            counts[_form_of_layer(layer, "kohya" if name.endswith(f".{factor}") else "peft")] += 1
    return counts.most_common(1)[0][0] if counts else ""


def _form_of_layer(layer: str, spelling: Spelling) -> str:
    prefix, _ = split_layer(layer)
    return next(form.name for form in _FORMS_OF[prefix.start] if form.spelling in (None, spelling))
