"""The classes of the parts that families share, and of their blocks; they are imported on loading."""

from __future__ import annotations

from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass, VaeFile
from modules.families.spec import TextSpec
from modules.settings.layer_filter import LayerFilter, LayerPresets

_RESNET = "diffusers.models.resnet:ResnetBlock2D"
_PASSES = "modules.families.parts.traced_passes"
_CLIP_LAYER = ("transformers.models.clip.modeling_clip:CLIPEncoderLayer",)

# The presets mean what OneTrainer's of like name mean.
UNET_LAYERS: LayerPresets = {
    "attention_mlp": LayerFilter(("attentions",)),
    "attention": LayerFilter(("attn",)),
    "blocks": LayerFilter((r"^(down_blocks|mid_block|up_blocks)\.",), is_regex=True),
}
UNET = ModelClass(
    "diffusers.models.unets.unet_2d_condition:UNet2DConditionModel",
    ("diffusers.models.attention:BasicTransformerBlock",),
    f"{_PASSES}:unet_passes",
    (_RESNET,),
    attention="modules.families.parts.attention_processor:set_processors",
    layers=UNET_LAYERS,
    # The embeddings of timesteps and sizes: small, and used by all layers after them.
    never_quantized=frozenset({"time_embedding", "add_embedding", "class_embedding"}),
)
KL_VAE = ModelClass(
    "diffusers.models.autoencoders.autoencoder_kl:AutoencoderKL",
    ("diffusers.models.attention_processor:Attention",),
    f"{_PASSES}:vae_passes",
    (_RESNET,),
    file_key="modules.families.parts.single_file.autoencoder:modern_key",
    vae_file=VaeFile(
        "modules.families.parts.single_file.autoencoder:vae_slots",
        original=("encoder.down.0.block.",),
        diffusers=("encoder.down_blocks.0.resnets.",),
    ),
)
_FRAME_VAE = "modules.families.parts.frame_vae"
_QWEN_IMAGE = "diffusers.models.autoencoders.autoencoder_kl_qwenimage"
QWEN_IMAGE_VAE = ModelClass(
    f"{_FRAME_VAE}:AutoencoderKLQwenImage",
    (f"{_QWEN_IMAGE}:QwenImageAttentionBlock",),
    f"{_FRAME_VAE}:vae_passes",
    (f"{_QWEN_IMAGE}:QwenImageResidualBlock",),
    vae_file=VaeFile(
        f"{_FRAME_VAE}:vae_slots",
        original=("encoder.downsamples.0.residual.",),
        diffusers=("encoder.down_blocks.0.norm1.",),
        original_latents="decoder.conv1.weight",
    ),
    library="diffusers",
)
"""The VAE of Qwen-Image, Krea 2 and Anima: 16 channels with a mean and a deviation each, read from its config."""
_HUNYUAN_VIDEO = "diffusers.models.autoencoders.autoencoder_kl_hunyuan_video"
HUNYUAN_VIDEO_VAE = ModelClass(
    f"{_FRAME_VAE}:AutoencoderKLHunyuanVideo",
    ("diffusers.models.attention_processor:Attention",),
    f"{_FRAME_VAE}:hunyuan_video_vae_passes",
    (f"{_HUNYUAN_VIDEO}:HunyuanVideoResnetBlockCausal3D",),
    library="diffusers",
)
_DOUBLE, _SINGLE = r"^transformer_blocks\.\d+\.", r"^single_transformer_blocks\.\d+\."
DOUBLE_STREAM_LAYERS: LayerPresets = {
    "attention_mlp": LayerFilter((rf"{_DOUBLE}(attn|ff|ff_context)\.", rf"{_SINGLE}(attn\.|proj_)"), is_regex=True),
    "attention": LayerFilter((rf"{_DOUBLE}attn\.", rf"{_SINGLE}attn\."), is_regex=True),
    "blocks": LayerFilter((_DOUBLE, _SINGLE), is_regex=True),
}
"""The presets of transformers with double-stream and single-stream blocks (`double_stream`)."""


def block_presets(block: str, attention: str, mlp: str) -> LayerPresets:
    """Return the presets of a transformer with one kind of blocks: attention and MLPs, attention alone, whole blocks.

    All three are regular expressions: of a block's name with the dot behind it, and of the layers in a block.
    """
    return {
        "attention_mlp": LayerFilter((rf"{block}({attention}|{mlp})\.",), is_regex=True),
        "attention": LayerFilter((rf"{block}({attention})\.",), is_regex=True),
        "blocks": LayerFilter((block,), is_regex=True),
    }


_CLIP_KEY = "modules.families.parts.unet_clip_file.clip:clip_key"
CLIP_TEXT = ModelClass(
    "transformers.models.clip.modeling_clip:CLIPTextModel",
    _CLIP_LAYER,
    f"{_PASSES}:text_passes",
    file_key=_CLIP_KEY,
)
CLIP_TEXT_WITH_PROJECTION = ModelClass(
    "transformers.models.clip.modeling_clip:CLIPTextModelWithProjection",
    _CLIP_LAYER,
    f"{_PASSES}:text_passes",
    never_quantized=frozenset({"text_projection"}),
    file_key=_CLIP_KEY,
)
T5_TEXT = ModelClass(
    "transformers.models.t5.modeling_t5:T5EncoderModel",
    ("transformers.models.t5.modeling_t5:T5Block",),
    f"{_PASSES}:text_passes",
    file_key="modules.families.parts.t5_layers:t5_key",
    overflows_in_float16=True,  # T5 v1.1 was trained in bfloat16; float16 clips its states
    is_large=True,
)
DISTILLED_DDPM = DistilledSpec(
    ("turbo", "lightning", "lcm", "hyper", "dmd2"),
    "Train on the base model that it was made from, and use the result with the distilled one. Training it directly "
    "undoes the distillation: its samples will need more steps and guidance.",
    config_key="time_cond_proj_dim",  # the guidance embedding of latent consistency models (Luo et al. 2023)
    guidance=2.0,
)

CLIP_CHUNK_TOKENS = 75
"""The tokens of a prompt that CLIP's text encoders read at once, between a start and an end token."""


_CLIP_PROMPTS_AT_ONCE = 16


def clip_prompts(**embedding_tensors: str) -> TextSpec:
    """Return how families with CLIP text encoders read prompts; `embedding_tensors` are the family's."""
    tokenizer = "modules.families.parts.clip_tokens:load_clip_tokenizer"
    return TextSpec(
        CLIP_CHUNK_TOKENS,
        tokenizer,
        is_lower_case=True,
        embedding_tensors=embedding_tensors,
        prompts_at_once=_CLIP_PROMPTS_AT_ONCE,
    )


def t5_prompts(max_tokens: int, *, encoder: str = "", **embedding_tensors: str) -> TextSpec:
    """Return how families read prompts with a T5, up to `max_tokens` with the end token, and truncate longer ones.

    `encoder` is the name of that part, if it is not the first text encoder.
    """
    tokenizer = "modules.families.parts.t5_tokens:load_t5_tokenizer"
    return TextSpec(
        max_tokens - 1,
        tokenizer,
        truncates=True,
        ships_vocabulary=False,
        counted_by=encoder,
        embedding_tensors=embedding_tensors,
    )
