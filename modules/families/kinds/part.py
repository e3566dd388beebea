"""A single part of a model: a UNet in diffusers' layout, a text encoder, a ControlNet. Torch-free."""

from __future__ import annotations

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import FileKindSpec
from modules.families.registry import family_of, label_of, model_of_text_width
from modules.formats.checkpoint_header import CheckpointHeader

_PARTS = (
    ("a ControlNet", ("control_model.", "controlnet_cond_embedding.", "controlnet_down_blocks.")),
    ("a CLIP text encoder", ("text_model.encoder.layers.", "encoder.layers.0.self_attn.", "transformer.resblocks.0.")),
)


def part_kind(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind if it is a single part of a model: a UNet in diffusers' layout, a text encoder, a
    ControlNet.
    """
    dtype = header.main_dtype
    for label, prefixes in _PARTS:
        if header.has(*prefixes):
            return FileKind("part", f"{label[0].upper()}{label[1:]} alone, {dtype}.", facts={"dtype": dtype})
    if header.has("down_blocks.") and header.has("up_blocks.") and header.has("conv_in."):
        model = model_of_text_width(header.second_axis("attn2.to_k.weight"))
        label = f" of {label_of(model)}" if model else ""
        facts = {"container": header.container, "layout": "diffusers", "dtype": dtype}
        sentence = f"A UNet alone{label}, in diffusers' layout, {dtype}."
        return FileKind("part", sentence, family_of(model), model, facts=facts)
    return None


PART = FileKindSpec(
    name="part",
    label="Part of a model",
    help="Only a denoiser, a text encoder or a ControlNet.",
    detect=part_kind,
    uses=frozenset({"denoiser"}),
)
