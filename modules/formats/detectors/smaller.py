"""Signs of what is less than a model: a VAE, an embedding, one part in diffusers' layout, a ControlNet. Torch-free."""

from __future__ import annotations

from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.detectors.checkpoints import main_dtype, width_of_text
from modules.formats.file_kind import FAMILY_OF, MODEL_LABELS, MODEL_OF_WIDTH, FileKind

_EMBEDDING_WIDTHS = {768: "sd1", 1024: "sd2"}
_PARTS = (
    ("a ControlNet", ("control_model.", "controlnet_cond_embedding.", "controlnet_down_blocks.")),
    ("a CLIP text encoder", ("text_model.encoder.layers.", "encoder.layers.0.self_attn.", "transformer.resblocks.0.")),
)


def vae_kind(header: CheckpointHeader) -> FileKind | None:
    """Return what a file is if it is a VAE alone, in the original or in diffusers' layout."""
    for prefix in ("first_stage_model.", "vae.", ""):
        original = header.has(f"{prefix}encoder.down.0.block.")
        if not original and not header.has(f"{prefix}encoder.down_blocks.0.resnets."):
            continue
        shape = header.shapes.get(f"{prefix}decoder.conv_in.weight", ())
        channels = shape[1] if len(shape) > 1 else 0
        facts = {"layout": "original" if original else "diffusers", "dtype": main_dtype(header.dtypes)}
        facts["latent_channels"] = str(channels)
        if channels not in (0, 4):
            sentence = f"A VAE with {channels} latent channels: not of Stable Diffusion 1, 2 or XL."
            return FileKind("other_model", sentence, facts=facts)
        sentence = f"A VAE alone, in the {facts['layout']} layout, {facts['dtype']}."
        return FileKind("vae", sentence, facts=facts)
    return None


def embedding_kind(header: CheckpointHeader) -> FileKind | None:
    """Return what a file is if it is a textual-inversion embedding (formats.md 5.4)."""
    shapes = {n: s for n, s in header.shapes.items() if len(s) in (1, 2)}
    if {"clip_l", "clip_g"} & shapes.keys():
        return _embedding("sdxl", shapes.get("clip_l", shapes.get("clip_g", ())))
    found = next((s for n, s in shapes.items() if n == "emb_params" or n.startswith("string_to_param.")), None)
    if found is None and len(header.shapes) == 1:
        found = next((s for s in shapes.values() if s and s[-1] in _EMBEDDING_WIDTHS), None)
    return _embedding(_EMBEDDING_WIDTHS.get(found[-1], ""), found) if found else None


def part_kind(header: CheckpointHeader) -> FileKind | None:
    """Return what a file is if it is one part of a model: a UNet in diffusers' layout, a text encoder, a ControlNet."""
    dtype = main_dtype(header.dtypes)
    for label, prefixes in _PARTS:
        if header.has(*prefixes):
            return FileKind("part", f"{label[0].upper()}{label[1:]} alone, {dtype}.", facts={"dtype": dtype})
    if header.has("down_blocks.") and header.has("up_blocks.") and header.has("conv_in."):
        model = MODEL_OF_WIDTH.get(width_of_text(header.shapes, "attn2.to_k.weight"), "")
        label = f" of {MODEL_LABELS[model]}" if model else ""
        facts = {"layout": "diffusers", "dtype": dtype}
        sentence = f"A UNet alone{label}, in diffusers' layout, {dtype}."
        return FileKind("part", sentence, FAMILY_OF.get(model, ""), model, facts=facts)
    return None


def _embedding(model: str, shape: tuple[int, ...]) -> FileKind:
    tokens = shape[0] if len(shape) == 2 else 1
    label = f" for {MODEL_LABELS[model]}" if model else ""
    plural = "s" if tokens != 1 else ""
    return FileKind(
        "embedding",
        f"A textual-inversion embedding of {tokens} token{plural}{label}.",
        FAMILY_OF.get(model, ""),
        model,
        facts={"tokens": str(tokens), "width": str(shape[-1] if shape else 0)},
    )
