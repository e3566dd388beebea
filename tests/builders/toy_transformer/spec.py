"""Rectified flow in a transformer at toy size (Z-Image: arXiv 2511.22699)."""

from __future__ import annotations

from modules.diffusion.process_spec import ConstantShift, FlowConvention, flow_matching
from modules.families.parts.part_classes import KL_VAE
from modules.families.spec import FamilySpec, LatentSpec, ModelClass, PartSpec, TextSpec
from modules.settings.layer_filter import LayerFilter
from tests.builders.toy_transformer.settings import ToyTransformerSettings

_HOME = "tests.builders.toy_transformer"
TRANSFORMER = ModelClass(
    "diffusers.models.transformers.transformer_z_image:ZImageTransformer2DModel",
    ("diffusers.models.transformers.transformer_z_image:ZImageTransformerBlock",),
    f"{_HOME}.traced_passes:transformer_passes",
    attention="modules.families.parts.attention_processor:set_backend",
    layers={
        "attention_mlp": LayerFilter((r"^layers\.\d+\.(attention|feed_forward)\.",), is_regex=True),
        "attention": LayerFilter((r"^layers\.\d+\.attention\.",), is_regex=True),
        "blocks": LayerFilter((r"^layers\.",), is_regex=True),
    },
    never_quantized=frozenset({"t_embedder", "adaLN_modulation", "all_x_embedder", "all_final_layer"}),
)
QWEN3 = ModelClass(
    "transformers.models.qwen3.modeling_qwen3:Qwen3Model",
    ("transformers.models.qwen3.modeling_qwen3:Qwen3DecoderLayer",),
    "modules.families.parts.traced_passes:text_passes",
)
CONVENTION = FlowConvention(output_sign=-1, time_input="1 - sigma", shift=ConstantShift(3.0), token_px=8)
TOY_TRANSFORMER = FamilySpec(
    name="toy_transformer",
    label="Toy transformer",
    settings=ToyTransformerSettings,
    parts=(
        PartSpec("transformer", "Transformer", "denoiser", TRANSFORMER),
        PartSpec("text_encoder", "Text encoder (Qwen3)", "text_encoder", QWEN3, trainable=False),
        PartSpec("vae", "VAE", "vae", KL_VAE, trainable=False),
    ),
    factory=f"{_HOME}.load:load",
    default_resolution_px=32,
    size_step_px=8,
    latents=LatentSpec(channels=16, factor=4),
    text=TextSpec(48, f"{_HOME}.text:load_tokenizer", truncates=True),
    files=f"{_HOME}.files:FILES",
    pipelines=("ToyTransformerPipeline",),
    process=flow_matching(CONVENTION),
)
