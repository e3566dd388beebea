"""Files that are neither whole models, adapters nor embeddings: single parts of a model, unknown and unreadable files,
and models that are not supported, so that a message can name them.

The markers of models are taken from diffusers' single-file loader, with similar additions.
"""

from __future__ import annotations

import re

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import FileKindSpec
from modules.families.parts.single_file.encoder_file import layout_of
from modules.families.registry import family_of, label_of, model_of_text_width
from modules.formats.checkpoint_header import CheckpointHeader
from modules.system.problem import with_article

# A name, and parts of tensor names that must all be present. The first match decides.
_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Flux 2 model", ("double_stream_modulation_img.",)),
    ("Flux 2 model", ("single_stream_modulation.",)),
    ("HunyuanVideo 1.5 model", ("cond_type_embedding.",)),
    ("HunyuanVideo 1.5 model in diffusers' layout", ("cond_type_embed.",)),
    ("distilled HunyuanImage 2.1 model", ("byt5_in.", "time_r_in.")),
    ("distilled HunyuanImage 2.1 model in diffusers' layout", ("context_embedder_2.", "timestep_embedder_r.")),
    ("refiner of HunyuanImage 2.1", ("txt_in.individual_token_refiner.",)),
    ("refiner of HunyuanImage 2.1 in diffusers' layout", ("context_embedder.token_refiner.",)),
    ("Flux model", ("double_blocks.0.img_attn.",)),
    ("Flux model in diffusers' layout", ("single_transformer_blocks.0.",)),
    ("Stable Diffusion 3 model", ("joint_blocks.0.",)),
    ("AuraFlow model", ("double_layers.0.attn.",)),
    ("HiDream model", ("double_stream_blocks.0.",)),
    ("Wan video model", ("head.modulation",)),
    ("LTX video model", ("patchify_proj.",)),
    ("Lumina or Z-Image model", ("cap_embedder.",)),
    ("Sana model", ("cross_attn.kv_linear.", "attn.qkv.")),
    ("PixArt model", ("t_block.", "cross_attn.")),
    ("Wuerstchen decoder (stage B)", ("clip_mapper.", "effnet_mappers.")),
    ("Stable Cascade model", ("clip_txt_mapper.",)),
    ("Stable Cascade model", ("channelwise.0.weight",)),
    ("Cosmos model", ("net.x_embedder.",)),
    ("Mochi model", ("attn.qkv_x.",)),
    *((f"FLUX.3 model with {stream}", (f"early_stream_modulations.{stream}.",)) for stream in ("video", "audio")),
    ("motion module (AnimateDiff)", ("motion_modules.",)),
    ("ControlNet-LoRA", ("lora_controlnet",)),
    ("ControlNet-LLLite", ("lllite_",)),
    ("IP-Adapter", ("ip_adapter.",)),
    ("IP-Adapter", ("image_proj.", "to_k_ip")),
    ("CLIP vision model", ("vision_model.encoder.",)),
    ("upscaler (ESRGAN)", ("body.0.rdb1.",)),
)
# By the width of the text states, for keys and values.
_HYPERNETWORK = re.compile(r"\d{1,5}\.[01]\.linear")


def other_model_kind(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind if it is a model that is not supported."""
    if any(_HYPERNETWORK.match(name) for name in header.shapes):
        return FileKind("other_model", "A hypernetwork of A1111, which is not supported.")
    for label, parts in _MARKS:
        if all(any(part in name for name in header.shapes) for part in parts):
            return FileKind("other_model", f"{with_article(label, capital=True)}, which is not supported.")
    return None


OTHER_MODEL = FileKindSpec(
    name="other_model",
    label="Unsupported model",
    help="A model of a family that is not supported.",
    detect=other_model_kind,
)


_PARTS = (
    ("a ControlNet", ("control_model.", "controlnet_cond_embedding.", "controlnet_down_blocks.")),
    ("a CLIP text encoder", ("transformer.resblocks.0.",)),
)


def part_kind(header: CheckpointHeader) -> FileKind | None:
    """Return the file's kind if it is a single part of a model: a UNet in diffusers' layout, a text encoder, a
    ControlNet.
    """
    dtype = f"{'scaled ' if header.scales.names else ''}{header.main_dtype}"
    if (layout := layout_of(header.shapes)) is not None:
        return FileKind("part", f"{with_article(layout.label, capital=True)} alone, {dtype}.", facts={"dtype": dtype})
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


UNKNOWN = FileKindSpec("unknown", "Unknown", "A file or tensors of an unknown kind.")
BROKEN = FileKindSpec("broken", "Unreadable", "A file that is missing, damaged, or not a model file.")
