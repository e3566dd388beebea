"""A tiny random Stable Cascade, whose decoder and image encoder are in the folder of the base model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import DDPMWuerstchenScheduler
from diffusers.models.unets.unet_stable_cascade import StableCascadeUNet
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel
from safetensors.torch import save_file
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from modules.families.parts.efficient_net import STAGES, EffNetEncoder, Stage
from modules.families.parts.effnet_files import EFFNET_FILE
from modules.families.protocol import ModelFamily
from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.models import write_folder
from tests.builders.pipelines import clip_tokenizer

SCHEDULER = {"_class_name": "DDPMWuerstchenScheduler", "s": 0.008, "scaler": 1.0}
TEXT, POOLED = 24, 20
KINDS = ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock")


def tiny_prior() -> StableCascadeUNet:
    """A prior of two levels with two groups of blocks on the way down and up, all of the published kinds."""
    return StableCascadeUNet(
        in_channels=16,
        out_channels=16,
        conditioning_dim=32,
        block_out_channels=(32, 48),
        num_attention_heads=(2, 2),
        down_num_layers_per_block=(1, 1),
        up_num_layers_per_block=(1, 1),
        block_types_per_layer=(KINDS, KINDS),
        clip_text_in_channels=TEXT,
        clip_text_pooled_in_channels=POOLED,
        clip_image_in_channels=8,
        switch_level=(False,),
    )


def tiny_decoder() -> StableCascadeUNet:
    """A decoder of two levels, with attention on the second one."""
    return StableCascadeUNet(
        in_channels=4,
        out_channels=4,
        patch_size=2,
        conditioning_dim=16,
        block_out_channels=(8, 16),
        num_attention_heads=(0, 2),
        down_num_layers_per_block=(1, 1),
        up_num_layers_per_block=(1, 1),
        down_blocks_repeat_mappers=(1, 1),
        up_blocks_repeat_mappers=(2, 1),
        block_types_per_layer=(KINDS[:2], KINDS),
        clip_text_pooled_in_channels=POOLED,
        effnet_in_channels=16,
        pixel_mapper_in_channels=3,
        timestep_conditioning_type=("sca",),
    )


def tiny_vqgan(*, scale_factor: float = 0.003) -> PaellaVQModel:
    """The VQGAN of factor 4. The latents of a decoder with random weights are large, so that their scale is small."""
    return PaellaVQModel(
        bottleneck_blocks=1, embed_dim=16, latent_channels=4, num_vq_embeddings=8, scale_factor=scale_factor
    )


def tiny_clip_with_projection() -> CLIPTextModelWithProjection:
    """A CLIP text encoder of OpenCLIP's with the real vocabulary."""
    config = CLIPTextConfig(
        vocab_size=49408,
        hidden_size=TEXT,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        projection_dim=POOLED,
        hidden_act="gelu",
        bos_token_id=49406,
        eos_token_id=49407,
        pad_token_id=49407,
    )
    return CLIPTextModelWithProjection(config)


def tiny_encoder(*, is_scaled: bool = False) -> EffNetEncoder:
    """An image encoder with one narrow block of each stage, and statistics as after some training."""
    stages = tuple(Stage(s.is_fused, s.expansion, s.stride, 8, 1) for s in STAGES)
    encoder = EffNetEncoder(stages, 12, 16, is_scaled=is_scaled)
    for norm in (m for m in encoder.modules() if isinstance(m, nn.BatchNorm2d)):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_(std=0.1)
        norm.running_var.uniform_(0.2, 0.6)
    return encoder


def write_cascade_folder(folder: Path) -> Path:
    """Write the base model with the decoder and the image encoder in its folder."""
    decoder = {"decoder": tiny_decoder, "vqgan": tiny_vqgan}
    write_folder(folder, "StableCascadeDecoderPipeline", decoder, SCHEDULER, seed=1)
    parts = {"prior": tiny_prior, "text_encoder": tiny_clip_with_projection}
    write_folder(folder, "StableCascadePriorPipeline", parts, SCHEDULER, seed=0, resolution_multiple=42.67)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        encoder = tiny_encoder()
        enliven_vqgan(folder / "vqgan")
    save_file(encoder.state_dict(), folder / EFFNET_FILE)
    return folder


def enliven_vqgan(folder: Path) -> None:
    """Write a new VQGAN again, so that its blocks do something, and its images are gray: most others are clamped."""
    vqgan = PaellaVQModel.from_pretrained(folder)
    for name, parameter in vqgan.named_parameters():
        if name.endswith("gammas"):
            parameter.data.normal_(std=0.5)
    vqgan.out_block[0].weight.data *= 0.3
    vqgan.out_block[0].bias.data.fill_(0.5)
    vqgan.save_pretrained(folder)


class DdimOfCascade(DDPMWuerstchenScheduler):  # type: ignore[misc]  # diffusers has no types
    """The pipeline's own times and noise levels with the step of DDIM, which is the same in all runs."""

    def step(self, model_output: Any, timestep: Any, sample: Any, generator: Any = None, **_: Any) -> Any:
        abar, after = (
            self._alpha_cumprod(t, sample.device)[:, None, None, None]
            for t in (timestep, self.previous_timestep(timestep))
        )
        after = torch.where(self.previous_timestep(timestep)[:, None, None, None] == 0, 1.0, after)
        clean = (sample - (1 - abar).sqrt() * model_output) / abar.sqrt()
        previous = after.sqrt() * clean + (1 - after).sqrt() * model_output
        return diffusers.schedulers.scheduling_ddpm_wuerstchen.DDPMWuerstchenSchedulerOutput(prev_sample=previous)


class Pipelines:
    """diffusers' two pipelines with the parts of a loaded model."""

    def __init__(self, family: ModelFamily) -> None:
        parts: Any = {name: part.module for name, part in family.parts.items()}
        text = {"text_encoder": parts["text_encoder"], "tokenizer": clip_tokenizer()}
        self.prior = diffusers.StableCascadePriorPipeline(prior=parts["prior"], scheduler=DdimOfCascade(), **text)
        self.decoder = diffusers.StableCascadeDecoderPipeline(
            decoder=parts["vae"].stage_b, vqgan=parts["vae"].stage_a, scheduler=DDPMWuerstchenScheduler(), **text
        )
        for pipe in (self.prior, self.decoder):
            pipe.set_progress_bar_config(disable=True)


def cascade_pipelines(folder: Path, family: ModelFamily) -> Pipelines:
    return Pipelines(family)


def _pipeline_text(pipe: Pipelines, prompt: str) -> Mapping[str, torch.Tensor]:
    states_1LD, pooled_11E, *_ = pipe.prior.encode_prompt("cpu", 1, 1, False, prompt=prompt)
    return {"states": states_1LD, "pooled": pooled_11E[:, 0]}


def _pipeline_sample(
    pipe: Pipelines, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (side * 128 // 3 for side in noise_BCHW.shape[-2:])
    sides = {"height": height, "width": width}
    made = pipe.prior(prompt, **sides, latents=noise_BCHW, guidance_scale=guidance, num_inference_steps=4)
    latents_BCHW = made.image_embeddings
    image = pipe.decoder(
        latents_BCHW, prompt, generator=torch.Generator().manual_seed(0), guidance_scale=0.0, output_type="pt"
    ).images
    return latents_BCHW, image


_PUBLISHED = "https://huggingface.co/stabilityai/stable-cascade/resolve/main/effnet_encoder.safetensors"
CASCADE_OF_ONETRAINER = {
    "model_type": "STABLE_CASCADE_1",
    "base_model_name": "stabilityai/stable-cascade-prior",
    "resolution": "128",
    "learning_rate": 0.0001,
    "prior": {"train": True, "weight_dtype": "FLOAT_8"},
    "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"},
    "effnet_encoder": {"model_name": _PUBLISHED, "weight_dtype": "FLOAT_32"},
    "decoder": {"model_name": "stabilityai/stable-cascade", "weight_dtype": "BFLOAT_16"},
    "timestep_distribution": "UNIFORM",
    "loss_weight_fn": "P2",
    "loss_weight_strength": 1.0,
}
_VALUES = {
    "training.noise.distribution": "uniform",
    "training.loss.weighting": "p2",
    "data.bucket_step_px": 128,
    "parts.vae.dtype": "bfloat16",
    "model.family.decoder": "stabilityai/stable-cascade",
    "model.family.effnet_encoder": "",
}
ONETRAINER = {
    "LoRA": OneTrainerConfig({**CASCADE_OF_ONETRAINER}, {**_VALUES, "parts.prior.dtype": "float8"}),
    "fine-tune": OneTrainerConfig(
        {
            **CASCADE_OF_ONETRAINER,
            **FULL_OF_ONETRAINER,
            "prior": {"train": True, "weight_dtype": "BFLOAT_16"},
            "output_model_format": "DIFFUSERS",
        },
        {**_VALUES, "parts.prior.train": True, "training.trains": "full"},
    ),
    "fine-tune, one file": OneTrainerConfig(
        {
            **CASCADE_OF_ONETRAINER,
            **FULL_OF_ONETRAINER,
            "prior": {"train": True, "weight_dtype": "BFLOAT_16"},
            "output_model_format": "SAFETENSORS",
        },
        {**_VALUES, "output.model_format": "single_file"},
    ),
}

TINY = FlowModel(
    "stable_cascade",
    write_cascade_folder,
    cascade_pipelines,
    _pipeline_text,
    _pipeline_sample,
    published_shapes={
        "clip_txt_pooled_mapper.weight": (8192, 1280),
        "clip_txt_mapper.weight": (2048, 1280),
        "down_blocks.0.2.attention.attn.in_proj_weight": (6144, 2048),
        "down_blocks.1.71.attention.attn.out_proj.weight": (2048, 2048),
        "up_blocks.1.0.channelwise.0.weight": (8192, 4096),
        "up_blocks.0.0.channelwise.2.gamma": (1, 1, 1, 8192),
    },
    published_weights=3_589_103_632,
    places=("decoder",),
    untrained=("text_encoder",),
    attends_to_padding=True,
    side_px=128,
    onetrainer=ONETRAINER,
)
