"""A tiny random Chroma1, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import ChromaPipeline, FlowMatchEulerDiscreteScheduler
from diffusers.models.transformers.transformer_chroma import ChromaTransformer2DModel
from transformers import T5Tokenizer

from modules.families.protocol import ModelFamily
from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.flux import TINY as FLUX
from tests.builders.models import write_folder
from tests.builders.pipelines import latents_and_image
from tests.builders.t5 import tiny_t5, write_t5_tokenizer
from tests.builders.z_image import tiny_flux_vae

SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "use_dynamic_shifting": False,
}


def tiny_transformer() -> ChromaTransformer2DModel:
    """A transformer with two double and two single blocks, and an approximator of two layers."""
    return ChromaTransformer2DModel(
        in_channels=64,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        axes_dims_rope=(4, 6, 6),
        approximator_num_channels=16,
        approximator_hidden_dim=20,
        approximator_layers=2,
    )


def write_chroma_folder(folder: Path) -> Path:
    """Write the model."""
    parts = {"transformer": tiny_transformer, "text_encoder": tiny_t5, "vae": tiny_flux_vae}
    write_folder(folder, "ChromaPipeline", parts, SCHEDULER, seed=0, tokenizer=["transformers", "T5Tokenizer"])
    write_t5_tokenizer(folder / "tokenizer")
    return folder


def chroma_pipeline(folder: Path, family: ModelFamily) -> ChromaPipeline:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizer."""
    pipe = ChromaPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=family.parts["vae"].module,
        text_encoder=family.parts["text_encoder"].module,
        tokenizer=T5Tokenizer.from_pretrained(folder / "tokenizer", local_files_only=True),
        transformer=family.parts["transformer"].module,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def masked_text(pipe: ChromaPipeline, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The pipeline's 512 states of a prompt, and which of them the transformer sees.

    The pipeline's mask of numbers would be added to the attention's scores (diffusers' issue 12116), so it gets a
    boolean one, as it does from users who know.
    """
    states_1LD, mask_1L = pipe._get_t5_prompt_embeds([prompt], max_sequence_length=512, device=torch.device("cpu"))
    return states_1LD, mask_1L.bool()


def _pipeline_text(pipe: ChromaPipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    states_1LD, mask_1L = masked_text(pipe, prompt)
    return {"states": states_1LD[:, : int(mask_1L.sum())]}


def _pipeline_sample(
    pipe: ChromaPipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    states_1LD, mask_1L = masked_text(pipe, prompt)
    empty_1LD, empty_mask_1L = masked_text(pipe, "")

    latents, image = latents_and_image(
        pipe,
        noise_BCHW,
        guidance,
        prompt_embeds=states_1LD,
        prompt_attention_mask=mask_1L,
        negative_prompt_embeds=empty_1LD,
        negative_prompt_attention_mask=empty_mask_1L,
        latents=pipe._pack_latents(noise_BCHW, *noise_BCHW.shape),
    )
    return pipe._unpack_latents(latents, height, width, pipe.vae_scale_factor), image


CHROMA_OF_ONETRAINER = {
    "model_type": "CHROMA_1",
    "base_model_name": "lodestones/Chroma1-HD",
    "learning_rate": 0.0003,
    "transformer": {"train": True, "weight_dtype": "FLOAT_8", "offload_fraction": 0.6},
    "timestep_distribution": "INVERTED_PARABOLA",
    "noising_weight": 7.7,
    "layer_filter": "attn,ff.net,proj_mlp",
    "quantization": {"layer_filter": "transformer_block", "layer_filter_preset": "blocks"},
}
CHROMA_VALUES = {"training.noise.distribution": "inverted_parabola", "training.noise.noising_weight": 7.7}
ONETRAINER = {
    "16 GB": OneTrainerConfig(CHROMA_OF_ONETRAINER, {**CHROMA_VALUES, "parts.transformer.dtype": "float8"}),
    "full": OneTrainerConfig(
        {**CHROMA_OF_ONETRAINER, **FULL_OF_ONETRAINER, "output_model_format": "ORIGINAL_TRANSFORMER"},
        CHROMA_VALUES,
        frozenset({"output.model_format"}),
    ),
}


TINY = FlowModel(
    "chroma",
    write_chroma_folder,
    chroma_pipeline,
    _pipeline_text,
    _pipeline_sample,
    other_forms=FLUX.other_forms,
    published_shapes={
        "img_in.weight": (3072, 64),
        "txt_in.weight": (3072, 4096),
        "distilled_guidance_layer.in_proj.weight": (5120, 64),
        "distilled_guidance_layer.layers.4.out_layer.weight": (5120, 5120),
        "distilled_guidance_layer.norms.4.scale": (5120,),
        "distilled_guidance_layer.out_proj.weight": (3072, 5120),
        "double_blocks.18.img_attn.qkv.weight": (9216, 3072),
        "double_blocks.18.txt_attn.norm.query_norm.scale": (128,),
        "single_blocks.37.linear1.weight": (21504, 3072),
        "single_blocks.37.linear2.weight": (3072, 15360),
        "final_layer.linear.weight": (64, 3072),
    },
    published_weights=8_899_983_424,
    unread=FLUX.unread,
    untrained=("text_encoder",),
    onetrainer=ONETRAINER,
)
