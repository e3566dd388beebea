"""Recognising whole models in one file, original layout (formats.md 5.5 in short): text encoders first, then widths.

A family's record says which names its text encoders have; where a file holds the UNet alone, the width of its text
input decides. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.single_file.models import UNET_PREFIX
from modules.families.parts.single_file.prediction import told_prediction
from modules.families.parts.single_file.record import PredictionMark, SingleFile
from modules.families.published import PublishedModel
from modules.formats.checkpoint_header import CheckpointHeader

VARIANTS: Mapping[int, str] = {9: "inpainting", 8: "instruct", 5: "depth", 7: "upscaler"}
"""What a UNet of the original models is for, by how many channels its first layer reads."""

_VAE = ("first_stage_model.", "vae.")
_TEXT = ("cond_stage_model.", "conditioner.embedders.")


def checkpoint_of(header: CheckpointHeader, models: Sequence[PublishedModel]) -> FileKind | None:
    """Return what a file is if it is one of these models, or the UNet of one, in the original layout."""
    unet = next((p for p in (UNET_PREFIX, "diffusion_model.", "") if header.has(f"{p}input_blocks.0.0.")), None)
    if unet is None or not header.has(f"{unet}output_blocks."):
        return None
    records = {m.name: (m, m.single_file) for m in models if m.single_file is not None}
    name = _model(header, unet, list(records.values()))
    if not name:
        return None
    record = records[name][1]
    told = told_prediction(header, record)
    if told.prediction == "v_prediction" and record.velocity_model:
        name = record.velocity_model
    model = records[name][0]
    variant = VARIANTS.get(header.second_axis(f"{unet}input_blocks.0.0.weight"), "")
    has_text = header.has(*_TEXT)
    facts = _facts(header, told, has_vae=header.has(*_VAE), has_text=has_text)
    whole = has_text or header.has(*_VAE)
    return FileKind(
        kind="checkpoint" if whole else "part",
        sentence=_sentence(model.label, record, variant, told, facts, whole=whole),
        family=model.family,
        model=name,
        variant=variant,
        prediction=told.prediction or ("" if record.is_silent else "epsilon"),
        zero_snr=told.zero_snr,
        facts=facts,
        is_whole=whole,
    )


def _model(header: CheckpointHeader, unet: str, models: Sequence[tuple[PublishedModel, SingleFile]]) -> str:
    for model, record in models:
        if header.has(*record.markers):
            return model.name
    if header.has(*_TEXT):  # another family's
        return ""
    width = header.second_axis("attn2.to_k.weight", prefix=unet)
    labelled = header.has(f"{unet}label_emb.")
    fitting = (model.name for model, _ in models if width and model.text_width == width)
    return next(fitting, next((m.name for m, r in models if labelled and r.has_labels), ""))


def _facts(header: CheckpointHeader, told: PredictionMark, *, has_vae: bool, has_text: bool) -> dict[str, str]:
    facts = {"container": header.container, "dtype": header.main_dtype, "tensors": str(len(header.shapes))}
    if told.detector:
        facts["prediction_from"] = told.detector
    if not has_vae:
        facts["vae"] = "missing"
    if not has_text:
        facts["text_encoders"] = "missing"
    if header.has("model_ema."):
        facts["ema"] = "beside the weights" if header.has(UNET_PREFIX) else "alone"
    if header.code:
        facts["code"] = ", ".join(header.code[:5])
    return facts


def _sentence(
    label: str, record: SingleFile, variant: str, told: PredictionMark, facts: Mapping[str, str], *, whole: bool
) -> str:
    text = f"A {label}{f' {variant}' if variant else ''} {'checkpoint' if whole else 'UNet alone'}"
    match told.prediction:
        case "v_prediction":
            text += " that predicts velocity"
            text += " with zero terminal SNR" if told.zero_snr else ""
        case "edm":
            text += " of the EDM kind"
        case "" if record.is_silent:
            text += " that does not tell whether it predicts epsilon or velocity"
        case _:
            text += " that predicts epsilon"
    text += f", {facts['dtype']}" if facts["dtype"] else ""
    if whole and (lacks := [n for n in ("vae", "text_encoders") if n in facts]):
        text += f"; it lacks {' and '.join(n.replace('_', ' ').replace('vae', 'the VAE') for n in lacks)}"
    if "code" in facts:
        text += f"; it names code ({facts['code']}) and may not load"
    return f"{text}."
