"""HunyuanVideo (Kong et al. 2024, arXiv 2412.03603): rectified flow in a transformer of double and single blocks.

It is a model of videos, which is used here for images, videos of one frame. The language model of a LLaVA reads the
prompts, CLIP-L gives one state for the whole prompt, and the guidance scale is an input.
"""

from dataclasses import replace
from typing import Literal

from modules.diffusion.flow_convention import ConstantShift, FlowConvention, flow_matching
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.parts import language_models, part_classes
from modules.families.settings import FamilySettings, TrainingGuidance
from modules.families.spec import FamilySpec, LatentSpec, PartSpec


class HunyuanVideoSettings(FamilySettings):
    """13 billion weights, a model of videos that is trained and sampled here with images: videos of one frame."""

    name: Literal["hunyuan_video"] = "hunyuan_video"
    guidance: TrainingGuidance = 1.0


_HOME = "modules.families.hunyuan_video"
_CLASSES = "diffusers.models.transformers.transformer_hunyuan_video"
MAX_TOKENS = 256
"""The tokens of a prompt that the transformer reads (`HunyuanVideoPipeline`), with one of the template behind it."""

TRANSFORMER = ModelClass(
    f"{_CLASSES}:HunyuanVideoTransformer3DModel",
    (f"{_CLASSES}:HunyuanVideoTransformerBlock", f"{_CLASSES}:HunyuanVideoSingleTransformerBlock"),
    f"{_HOME}.model:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    layers=part_classes.DOUBLE_STREAM_LAYERS,
    # The embeddings of time, guidance, text and image, and the output: small, and sensitive. The refiner of the text is
    # among them.
    never_quantized=frozenset({"time_text_embed", "context_embedder", "x_embedder", "norm_out", "^proj_out"}),
    masks_padding=True,
    work=3.5,
    joins_weights=True,
)
HUNYUAN_VIDEO = FamilySpec(
    name="hunyuan_video",
    label="HunyuanVideo",
    settings=HunyuanVideoSettings,
    parts=(
        PartSpec("transformer", "Transformer", "denoiser", TRANSFORMER),
        PartSpec("text_encoder", "Text encoder 1 (Llama 3 8B)", "text_encoder", language_models.LLAMA, trainable=False),
        PartSpec(
            "text_encoder_2",
            "Text encoder 2 (CLIP-L)",
            "text_encoder",
            part_classes.CLIP_TEXT,
            trainable=False,
            most_tokens=part_classes.CLIP_CHUNK_TOKENS + 2,
        ),
        PartSpec("vae", "VAE", "vae", part_classes.HUNYUAN_VIDEO_VAE, trainable=False),
    ),
    size_step_px=16,
    latents=LatentSpec(channels=16, factor=8, frame_factor=4, frames_at_once=17),
    text=replace(
        language_models.chat_prompts(MAX_TOKENS - 1, "text_embed_dim"),
        widths={
            "text_encoder": ("hidden_size", "text_embed_dim"),
            "text_encoder_2": ("hidden_size", "pooled_projection_dim"),
        },
    ),
    process=flow_matching(FlowConvention(time_input="1000 sigma", shift=ConstantShift(7.0))),
    guidance="embedded",
    sample_guidance=6.0,
    distilled=DistilledSpec(
        ("fasthunyuan", "fast-hunyuan", "fastvideo", "accvideo"),
        "Train on HunyuanVideo, and use the result with the distilled one; both have the same layers. Training a "
        "distilled model directly undoes its distillation: its samples will need more steps. FastHunyuan is sampled in "
        "6 steps.",
        steps=6,
    ),
    adapter_form="comfyui",
    released="2024-12",
    kohya=("hunyuan_video", "hv"),
)
