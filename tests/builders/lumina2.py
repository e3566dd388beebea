"""A tiny random Lumina-Image 2.0, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Lumina2Pipeline
from diffusers.models.transformers.transformer_lumina2 import Lumina2Transformer2DModel
from transformers import PreTrainedTokenizerFast

from modules.families.protocol import ModelFamily
from tests.builders.flow_models import FlowModel
from tests.builders.models import write_folder
from tests.builders.pipelines import latents_and_image
from tests.builders.sana import tiny_gemma, write_gemma_tokenizer
from tests.builders.z_image import tiny_flux_vae

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 6.0}


def tiny_transformer() -> Lumina2Transformer2DModel:
    """One refiner of each kind and two blocks that change much; three heads share their keys and values."""
    transformer = Lumina2Transformer2DModel(
        hidden_size=48,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=3,
        num_kv_heads=1,
        multiple_of=32,
        axes_dim_rope=(4, 6, 6),
        axes_lens=(300, 64, 64),
        cap_feat_dim=24,
    )
    with torch.no_grad():
        for block in (*transformer.noise_refiner, *transformer.layers):
            block.norm1.linear.weight.normal_(std=0.5)
            block.norm1.linear.bias.normal_(std=0.5)
    return transformer


def write_lumina2_folder(folder: Path) -> Path:
    """Write the model."""
    parts = {"transformer": tiny_transformer, "text_encoder": tiny_gemma, "vae": tiny_flux_vae}
    write_folder(folder, "Lumina2Pipeline", parts, SCHEDULER, seed=0, tokenizer=["transformers", "GemmaTokenizerFast"])
    write_gemma_tokenizer(folder / "tokenizer")
    return folder


def lumina2_pipeline(folder: Path, family: ModelFamily) -> Lumina2Pipeline:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizer."""
    pipe = Lumina2Pipeline(
        transformer=family.parts["transformer"].module,
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=family.parts["vae"].module,
        text_encoder=family.parts["text_encoder"].module,
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


@torch.no_grad()
def pipeline_text(pipe: Lumina2Pipeline, prompt: str, negative: str | None = None) -> Mapping[str, torch.Tensor]:
    """The states of a prompt, or of a negative one; the empty prompt is one of these."""
    states_1LD, mask_1L, negative_1LD, negative_mask_1L = pipe.encode_prompt(prompt, negative_prompt=negative or "")
    if not prompt or negative is not None:
        states_1LD, mask_1L = negative_1LD, negative_mask_1L
    return {"states": states_1LD[:, : int(mask_1L.sum())]}


def _pipeline_sample(
    pipe: Lumina2Pipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return latents_and_image(pipe, noise_BCHW, guidance, prompt=prompt)


TINY = FlowModel(
    "lumina2",
    write_lumina2_folder,
    lumina2_pipeline,
    pipeline_text,
    _pipeline_sample,
    published_shapes={
        "x_embedder.weight": (2304, 64),
        "t_embedder.mlp.0.weight": (1024, 256),
        "cap_embedder.0.weight": (2304,),
        "cap_embedder.1.weight": (2304, 2304),
        "context_refiner.1.attention.qkv.weight": (3840, 2304),
        "noise_refiner.1.adaLN_modulation.1.weight": (9216, 1024),
        "layers.25.attention.qkv.weight": (3840, 2304),
        "layers.25.attention.q_norm.weight": (96,),
        "layers.25.feed_forward.w2.weight": (2304, 9216),
        "final_layer.linear.weight": (64, 2304),
    },
    published_weights=2_609_769_152,
    unread=("kohya", "comfyui"),
)
