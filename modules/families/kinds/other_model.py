"""Signs of models this program does not train, so that a wrong file is called by its name. Torch-free.

The markers are those by which diffusers' single-file loader tells them apart, and like ones.
"""

from __future__ import annotations

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.record import FileKindSpec
from modules.formats.checkpoint_header import CheckpointHeader

# A name, and parts of tensor names that all have to be there. The first that fits is taken.
_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Chroma model", ("distilled_guidance_layer.",)),
    ("Flux 2 model", ("double_stream_modulation_img.",)),
    ("Flux 2 model", ("single_stream_modulation.",)),
    ("Hunyuan Video model", ("txt_in.individual_token_refiner.",)),
    ("Flux model", ("double_blocks.0.img_attn.",)),
    ("Flux model in diffusers' layout", ("single_transformer_blocks.0.",)),
    ("Stable Diffusion 3 model", ("joint_blocks.0.",)),
    ("AuraFlow model", ("double_layers.0.attn.",)),
    ("HiDream model", ("double_stream_blocks.0.",)),
    ("Wan video model", ("head.modulation",)),
    ("LTX video model", ("patchify_proj.",)),
    ("Lumina or Z-Image model", ("cap_embedder.",)),
    ("Qwen-Image model", ("txt_norm.", "transformer_blocks.0.")),
    ("Sana model", ("cross_attn.kv_linear.", "attn.qkv.")),
    ("PixArt model", ("t_block.", "cross_attn.")),
    ("Stable Cascade model", ("clip_txt_mapper.",)),
    ("Stable Cascade model", ("channelwise.0.weight",)),
    ("Cosmos model", ("net.x_embedder.",)),
    ("Mochi model", ("attn.qkv_x.",)),
    ("motion module (AnimateDiff)", ("motion_modules.",)),
    ("IP-Adapter", ("ip_adapter.",)),
    ("IP-Adapter", ("image_proj.", "to_k_ip")),
    ("T5 text encoder", ("encoder.block.0.layer.0.SelfAttention.",)),
    ("CLIP vision model", ("vision_model.encoder.",)),
    ("upscaler (ESRGAN)", ("body.0.rdb1.",)),
    ("language model", ("model.layers.0.self_attn.",)),
)


def other_model_kind(header: CheckpointHeader) -> FileKind | None:
    """Return what a file is if it is a model of another kind."""
    for label, parts in _MARKS:
        if all(any(part in name for name in header.shapes) for part in parts):
            article = "An" if label[0] in "AEIO" else "A"
            return FileKind("other_model", f"{article} {label}, which this program does not train.")
    return None


OTHER_MODEL = FileKindSpec(
    name="other_model",
    label="Model of another program",
    help="A model of a family that this program does not train.",
    detect=other_model_kind,
)
