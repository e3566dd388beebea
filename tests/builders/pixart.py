"""Tiny random models of PixArt alpha and sigma, written as diffusers folders with a tokenizer of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel
from transformers import T5Tokenizer

from modules.families.pixart.spec import is_alpha
from modules.families.protocol import ModelFamily
from modules.sampling.denoising_loop import make_scheduler
from tests.builders.flow_models import FlowModel, OneTrainerConfig
from tests.builders.models import tiny_vae, write_folder
from tests.builders.pipelines import latents_and_image
from tests.builders.t5 import tiny_t5, write_t5_tokenizer

SCHEDULER = {
    "_class_name": "DPMSolverMultistepScheduler",
    "beta_start": 0.0001,
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
}
WIDTH = 48  # a multiple of 3, for the size conditions


def tiny_transformer(**options: Any) -> PixArtTransformer2DModel:
    """A transformer of two blocks; without options it has size conditions, as alpha of 1024 px."""
    return PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=WIDTH // 2,
        num_layers=2,
        cross_attention_dim=WIDTH,
        caption_channels=24,
        sample_size=128,
        **options,
    )


def write_alpha_folder(folder: Path) -> Path:
    """Write a model with the config and the VAE of alpha."""
    return _write(folder, "PixArtAlphaPipeline", {}, scaling_factor=0.18215)


def write_sigma_folder(folder: Path) -> Path:
    """Write a model with the config and the VAE of sigma."""
    options = {"use_additional_conditions": False, "interpolation_scale": 2}
    return _write(folder, "PixArtSigmaPipeline", options, scaling_factor=0.13025)


def _write(folder: Path, pipeline: str, options: Mapping[str, Any], *, scaling_factor: float) -> Path:
    parts = {
        "transformer": lambda: tiny_transformer(**options),
        "text_encoder": tiny_t5,
        "vae": lambda: tiny_vae(scaling_factor=scaling_factor),
    }
    write_folder(folder, pipeline, parts, SCHEDULER, seed=0, tokenizer=["transformers", "T5Tokenizer"])
    write_t5_tokenizer(folder / "tokenizer")
    return folder


def pixart_pipeline(folder: Path, family: ModelFamily) -> Any:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizer."""
    transformer: Any = family.parts["transformer"].module
    name = "PixArtAlphaPipeline" if is_alpha(transformer.config) else "PixArtSigmaPipeline"
    pipe = getattr(diffusers, name)(
        scheduler=make_scheduler("ddim", SCHEDULER),
        vae=family.parts["vae"].module,
        text_encoder=family.parts["text_encoder"].module,
        tokenizer=T5Tokenizer.from_pretrained(folder / "tokenizer", local_files_only=True),
        transformer=transformer,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: Any, prompt: str) -> Mapping[str, torch.Tensor]:
    states_1LD, mask_1L, *_ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False)
    return {"states": states_1LD[:, : int(mask_1L.sum())]}


def _pipeline_sample(
    pipe: Any, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return latents_and_image(
        pipe, noise_BCHW, guidance, prompt=prompt, use_resolution_binning=False, clean_caption=False
    )


PIXART_OF_ONETRAINER = {
    "base_model_name": "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS",
    "learning_rate": 0.0003,
    "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"},
    "timestep_distribution": "UNIFORM",
    "vb_loss_strength": 1.0,
}
ONETRAINER = {
    model_type: OneTrainerConfig(
        {"model_type": model_type, **PIXART_OF_ONETRAINER}, {"training.noise.distribution": "uniform"}
    )
    for model_type in ("PIXART_ALPHA", "PIXART_SIGMA")
}


TINY = FlowModel(
    "pixart",
    write_alpha_folder,
    pixart_pipeline,
    _pipeline_text,
    _pipeline_sample,
    published_shapes={
        "x_embedder.proj.weight": (1152, 4, 2, 2),
        "t_embedder.mlp.0.weight": (1152, 256),
        "t_block.1.weight": (6912, 1152),
        "y_embedder.y_proj.fc1.weight": (1152, 4096),
        "blocks.27.scale_shift_table": (6, 1152),
        "blocks.27.attn.qkv.weight": (3456, 1152),
        "blocks.27.cross_attn.kv_linear.weight": (2304, 1152),
        "blocks.27.mlp.fc1.weight": (4608, 1152),
        "final_layer.scale_shift_table": (2, 1152),
        "final_layer.linear.weight": (32, 1152),
    },
    published_weights=610_856_096,
    untrained=("text_encoder",),
    onetrainer=ONETRAINER,
)
