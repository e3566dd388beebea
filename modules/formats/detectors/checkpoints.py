"""Signs of whole models in one file, original layout (formats.md 5.5 in short): text encoders first, then widths.

SDXL has two `conditioner.embedders`, SD 2 an OpenCLIP under `cond_stage_model.model`, SD 1 a CLIP under
`cond_stage_model.transformer`; where a file holds the UNet alone, the width of its text input decides. Torch-free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.detectors.prediction import Told, told_prediction
from modules.formats.file_kind import FAMILY_OF, MODEL_LABELS, MODEL_OF_WIDTH, VARIANT_OF_CHANNELS, FileKind

UNET, VAE = "model.diffusion_model.", ("first_stage_model.", "vae.")
_TEXT_DETECTORS = (
    ("sdxl", "conditioner.embedders.1.model."),
    ("sdxl_refiner", "conditioner.embedders.0.model."),
    ("sdxl", "conditioner.embedders.0.transformer."),
    ("sd2", "cond_stage_model.model."),
    ("sd1", "cond_stage_model.transformer."),
)
_DTYPE_LABELS = {
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8",
    "F8_E5M2": "float8",
}


def checkpoint_kind(header: CheckpointHeader) -> FileKind | None:
    """Return what a file is if it is a model, or a model's UNet, in the original layout."""
    unet = next((p for p in (UNET, "diffusion_model.", "") if header.has(f"{p}input_blocks.0.0.")), None)
    if unet is None or not header.has(f"{unet}output_blocks."):
        return None
    model = _model(header, unet)
    if not model:
        return None
    told = told_prediction(header, model)
    if model == "sd2" and told.prediction == "v_prediction":
        model = "sd2_v"
    variant = VARIANT_OF_CHANNELS.get(_axis(header.shapes.get(f"{unet}input_blocks.0.0.weight", ()), 1), "")
    has_text = any(header.has(prefix) for _, prefix in _TEXT_DETECTORS)
    facts = _facts(header, told, has_vae=header.has(*VAE), has_text=has_text)
    whole = has_text or header.has(*VAE)
    return FileKind(
        kind="checkpoint" if whole else "part",
        sentence=_sentence(model, variant, told, facts, whole=whole),
        family=FAMILY_OF[model],
        model=model,
        variant=variant,
        prediction=told.prediction or ("" if model.startswith("sd2") else "epsilon"),
        zero_snr=told.zero_snr,
        facts=facts,
    )


def main_dtype(dtypes: Mapping[str, str]) -> str:
    """Return the dtype most tensors have, by its plain name."""
    counts = Counter(d for d in dtypes.values() if d in _DTYPE_LABELS)
    return _DTYPE_LABELS[counts.most_common(1)[0][0]] if counts else ""


def width_of_text(shapes: Mapping[str, tuple[int, ...]], ending: str) -> int:
    """Return how wide the text states are that cross-attention takes in, 0 where nothing tells."""
    return next((_axis(s, 1) for name, s in shapes.items() if name.endswith(ending)), 0)


def _model(header: CheckpointHeader, unet: str) -> str:
    for model, prefix in _TEXT_DETECTORS:
        if header.has(prefix):
            return model
    shapes = {name: s for name, s in header.shapes.items() if name.startswith(unet)}
    labelled = "sdxl" if header.has(f"{unet}label_emb.") else ""
    return MODEL_OF_WIDTH.get(width_of_text(shapes, "attn2.to_k.weight"), labelled)


def _facts(header: CheckpointHeader, told: Told, *, has_vae: bool, has_text: bool) -> dict[str, str]:
    facts = {"container": header.container, "dtype": main_dtype(header.dtypes), "tensors": str(len(header.shapes))}
    if told.detector:
        facts["prediction_from"] = told.detector
    if not has_vae:
        facts["vae"] = "missing"
    if not has_text:
        facts["text_encoders"] = "missing"
    if header.has("model_ema."):
        facts["ema"] = "beside the weights" if header.has(UNET) else "alone"
    if header.code:
        facts["code"] = ", ".join(header.code[:5])
    return facts


def _sentence(model: str, variant: str, told: Told, facts: Mapping[str, str], *, whole: bool) -> str:
    label = f"{MODEL_LABELS[model]}{f' {variant}' if variant else ''}"
    text = f"A {label} {'checkpoint' if whole else 'UNet alone'}"
    match told.prediction:
        case "v_prediction":
            text += " that predicts velocity"
            text += " with zero terminal SNR" if told.zero_snr else ""
        case "edm":
            text += " of the EDM kind"
        case "" if model == "sd2":
            text += " that does not tell whether it predicts epsilon or velocity"
        case _:
            text += " that predicts epsilon"
    text += f", {facts['dtype']}" if facts["dtype"] else ""
    if whole and (lacks := [n for n in ("vae", "text_encoders") if n in facts]):
        text += f"; it lacks {' and '.join(n.replace('_', ' ').replace('vae', 'the VAE') for n in lacks)}"
    if "code" in facts:
        text += f"; it names code ({facts['code']}) and may not load"
    return f"{text}."


def _axis(shape: tuple[int, ...], index: int) -> int:
    return shape[index] if len(shape) > index else 0
