"""Detects single files with a UNet in the original layout: by their text encoders, then by widths.

A model's record contains the names of its text encoders; for a file with only the UNet, the width of its text input
decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.single_file.prediction import find_prediction
from modules.families.parts.single_file.record import PredictionMark
from modules.families.parts.unet_clip_file.layout import EMA_PREFIX, UNET_PREFIX, UnetClipFile
from modules.families.published import PublishedModel
from modules.formats.checkpoint_header import CheckpointHeader

VARIANTS: Mapping[int, str] = {9: "inpainting", 8: "instruct", 5: "depth", 7: "upscaler"}
"""The variant of an original model, by the number of its UNet's input channels."""

_VAE = ("first_stage_model.", "vae.")
_TEXT = ("cond_stage_model.", "conditioner.embedders.")


Models = Sequence[tuple[PublishedModel, UnetClipFile]]
"""Published models with their files."""


def checkpoint_of(header: CheckpointHeader, models: Models) -> FileKind | None:
    """Return the file's kind if it is one of these models, or the UNet of one, in the original layout."""
    unet = _unet(header)
    if unet is None or not header.has(f"{unet.prefix}output_blocks"):
        return None
    records = {model.name: (model, record) for model, record in models}
    name = _model(header, unet, models)
    if not name:
        return None
    record = records[name][1]
    mark = find_prediction(header, record.prediction_from_weights)
    if mark.prediction == "v_prediction" and record.velocity_model:
        name = record.velocity_model
    model = records[name][0]
    variant = VARIANTS.get(header.second_axis(unet.name("input_blocks.0.0.weight")), "")
    has_text = header.has(*_TEXT)
    facts = _facts(header, mark, has_vae=header.has(*_VAE), has_text=has_text)
    if header.has(EMA_PREFIX):
        facts["ema"] = "alone" if unet.is_averaged else "besides the weights"
    whole = has_text or header.has(*_VAE)
    return FileKind(
        kind="checkpoint" if whole else "part",
        sentence=_sentence(model.label, record, variant, mark, facts, whole=whole),
        family=model.family,
        model=name,
        variant=variant,
        prediction=mark.prediction or ("" if record.is_ambiguous else "epsilon"),
        zero_snr=mark.zero_snr,
        facts=facts,
        is_whole=whole,
    )


@dataclass(frozen=True, slots=True)
class _Unet:
    """How the tensors of a UNet are named in a file; the names of EMA weights have no dots in them."""

    prefix: str
    is_averaged: bool = False

    def name(self, original: str) -> str:
        """Return the name of a tensor, by its name in the original layout."""
        return f"{self.prefix}{original.replace('.', '') if self.is_averaged else original}"


def _unet(header: CheckpointHeader) -> _Unet | None:
    candidates = [_Unet(prefix) for prefix in (UNET_PREFIX, "diffusion_model.", "")]
    every = (*candidates, _Unet(EMA_PREFIX, is_averaged=True))
    return next((unet for unet in every if header.has(unet.name("input_blocks.0.0."))), None)


def _model(header: CheckpointHeader, unet: _Unet, models: Models) -> str:
    for model, record in models:
        if header.has(*record.markers):
            return model.name
    if header.has(*_TEXT):  # another family's
        return ""
    ending = "attn2to_kweight" if unet.is_averaged else "attn2.to_k.weight"
    width = header.second_axis(ending, prefix=unet.prefix)
    labelled = header.has(unet.name("label_emb."))
    fitting = (model.name for model, _ in models if width and model.text_width == width)
    return next(fitting, next((m.name for m, r in models if labelled and r.has_labels), ""))


def _facts(header: CheckpointHeader, mark: PredictionMark, *, has_vae: bool, has_text: bool) -> dict[str, str]:
    facts = {"container": header.container, "dtype": header.main_dtype, "tensors": str(len(header.shapes))}
    if mark.marker:
        facts["prediction_from"] = mark.marker
    if not has_vae:
        facts["vae"] = "missing"
    if not has_text:
        facts["text_encoders"] = "missing"
    if header.scales.names:
        facts["scaled"] = "a scale for each matrix"
    return facts


def _sentence(
    label: str, record: UnetClipFile, variant: str, mark: PredictionMark, facts: Mapping[str, str], *, whole: bool
) -> str:
    text = f"A {label}{f' {variant}' if variant else ''} {'checkpoint' if whole else 'UNet alone'}"
    match mark.prediction:
        case "v_prediction":
            text += " with v-prediction"
            text += " and zero terminal SNR" if mark.zero_snr else ""
        case "edm":
            text += " with EDM prediction"
        case "" if record.is_ambiguous:
            text += " with unknown prediction type (epsilon or v-prediction)"
        case _:
            text += " with epsilon prediction"
    text += f", {'scaled ' if 'scaled' in facts else ''}{facts['dtype']}" if facts["dtype"] else ""
    text += ", with EMA weights alone, which are used" if facts.get("ema") == "alone" else ""
    if whole and (lacks := [n for n in ("vae", "text_encoders") if n in facts]):
        text += f", without {' and '.join(n.replace('_', ' ').replace('vae', 'VAE') for n in lacks)}"
    return f"{text}."
