"""A tiny random Wuerstchen 2, whose decoder and image encoder are in the folder of the base model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import DDPMWuerstchenScheduler
from diffusers.pipelines.deprecated.wuerstchen.modeling_wuerstchen_diffnext import WuerstchenDiffNeXt
from diffusers.pipelines.deprecated.wuerstchen.modeling_wuerstchen_prior import WuerstchenPrior
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel

from modules.families.parts.effnet_files import EFFNET_FILE
from modules.families.protocol import ModelFamily
from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.models import write_folder
from tests.builders.pipelines import clip_tokenizer
from tests.builders.stable_cascade import SCHEDULER, DdimOfCascade, enliven_vqgan, tiny_encoder, tiny_vqgan

TEXT, DECODER_TEXT = 24, 20
_NEARLY_ZERO = ("mapper.weight", "gamma", "beta", "channelwise.4.weight")  # in a new decoder


def tiny_prior() -> WuerstchenPrior:
    """A prior of two groups of blocks, whose norms do something, and whose output is not divided by nearly 0."""
    prior = WuerstchenPrior(c_in=16, c=32, c_cond=TEXT, c_r=64, depth=2, nhead=2)
    with torch.no_grad():
        for name, parameter in prior.named_parameters():
            if name.endswith(("gamma", "beta")):
                parameter.normal_(std=0.2)
        prior.out[1].weight[16:] *= 0.2
        prior.out[1].bias[16:] = 0.0
    return prior


def tiny_decoder() -> WuerstchenDiffNeXt:
    """A decoder of two levels, with attention on the second one. A new one predicts nothing; this one divides its
    predictions by about 1, so that the latents of its images stay small.
    """
    decoder = WuerstchenDiffNeXt(
        c_cond=16,
        c_hidden=[8, 16],
        nhead=[-1, 2],
        blocks=[1, 1],
        level_config=["CT", "CTA"],
        inject_effnet=[False, True],
        clip_embd=DECODER_TEXT,
    )
    with torch.no_grad():
        decoder.clf[1].weight.normal_(std=0.35)
        decoder.clf[1].bias[16:] = 4.0
        for name, parameter in decoder.named_parameters():
            if name.startswith(("effnet_mappers", "embedding")) or name.endswith(_NEARLY_ZERO):
                parameter.normal_(std=0.2)
    return decoder


def tiny_text_encoder(hidden_size: int = TEXT) -> CLIPTextModel:
    """A CLIP text encoder of OpenCLIP's with the real vocabulary."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=49408,
            hidden_size=hidden_size,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            hidden_act="gelu",
            bos_token_id=49406,
            eos_token_id=49407,
            pad_token_id=49407,
        )
    )


def write_wuerstchen_folder(folder: Path) -> Path:
    """Write the base model with the decoder and the image encoder in its folder."""
    decoder = {
        "decoder": tiny_decoder,
        "vqgan": lambda: tiny_vqgan(scale_factor=0.3764),
        "decoder_text_encoder": lambda: tiny_text_encoder(DECODER_TEXT),
    }
    write_folder(folder, "WuerstchenDecoderPipeline", decoder, SCHEDULER, seed=1)
    parts = {"prior": tiny_prior, "text_encoder": tiny_text_encoder}
    facts = {"latent_mean": 42.0, "latent_std": 1.0, "resolution_multiple": 42.67}
    write_folder(folder, "WuerstchenPriorPipeline", parts, SCHEDULER, seed=0, **facts)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        encoder = tiny_encoder(is_scaled=True)
        enliven_vqgan(folder / "vqgan")
    save_file(encoder.state_dict(), folder / EFFNET_FILE)
    return folder


class Pipelines:
    """diffusers' two pipelines with the parts of a loaded model."""

    def __init__(self, family: ModelFamily) -> None:
        parts: Any = {name: part.module for name, part in family.parts.items()}
        self.tokenizer = clip_tokenizer()
        self.prior = diffusers.WuerstchenPriorPipeline(
            tokenizer=self.tokenizer,
            text_encoder=parts["text_encoder"],
            prior=parts["prior"],
            scheduler=DdimOfCascade(),
        )
        self.decoder = diffusers.WuerstchenDecoderPipeline(
            tokenizer=self.tokenizer,
            text_encoder=parts["vae"].clip,
            decoder=parts["vae"].stage_b,
            scheduler=DDPMWuerstchenScheduler(),
            vqgan=parts["vae"].stage_a,
        )
        for pipe in (self.prior, self.decoder):
            pipe.set_progress_bar_config(disable=True)

    def load_lora_weights(self, file: Path) -> None:
        """Load a LoRA with diffusers' loader of the prior's pipeline."""
        self.prior.load_lora_weights(file)

    def unload_lora_weights(self) -> None:
        """Remove it."""
        self.prior.unload_lora_weights()


def wuerstchen_pipelines(folder: Path, family: ModelFamily) -> Pipelines:
    return Pipelines(family)


def _pipeline_text(pipe: Pipelines, prompt: str) -> Mapping[str, torch.Tensor]:
    states_1LD, _ = pipe.prior.encode_prompt("cpu", 1, False, prompt=prompt)
    ids = pipe.tokenizer(prompt, padding="max_length", truncation=True, return_tensors="pt").input_ids
    return {"states": states_1LD, "tokens": ids.int()}


def _pipeline_sample(
    pipe: Pipelines, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (side * 128 // 3 for side in noise_BCHW.shape[-2:])
    sides = {"height": height, "width": width}
    made = pipe.prior(prompt, **sides, latents=noise_BCHW, guidance_scale=guidance, num_inference_steps=4)
    image = pipe.decoder(
        made.image_embeddings, prompt, generator=torch.Generator().manual_seed(0), output_type="pt"
    ).images
    return (made.image_embeddings + 1.0) / 42.0, image


_PUBLISHED = "https://huggingface.co/dome272/wuerstchen/resolve/main/model_v2_stage_b.pt"
WUERSTCHEN_OF_ONETRAINER = {
    "model_type": "WUERSTCHEN_2",
    "base_model_name": "warp-ai/wuerstchen-prior",
    "resolution": "128",
    "learning_rate": 0.0001,
    "prior": {"train": True, "weight_dtype": "FLOAT_8"},
    "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"},
    "effnet_encoder": {"model_name": _PUBLISHED, "weight_dtype": "FLOAT_32"},
    "decoder": {"model_name": "warp-ai/wuerstchen", "weight_dtype": "BFLOAT_16"},
    "decoder_text_encoder": {"weight_dtype": "BFLOAT_16"},
    "decoder_vqgan": {"weight_dtype": "FLOAT_32"},
    "timestep_distribution": "UNIFORM",
    "loss_weight_fn": "P2",
    "loss_weight_strength": 1.0,
}
_VALUES = {
    "training.noise.distribution": "uniform",
    "training.loss.weighting": "p2",
    "data.bucket_step_px": 128,
    "parts.vae.dtype": "bfloat16",
    "model.family.decoder": "warp-ai/wuerstchen",
    "model.family.effnet_encoder": "dome272/wuerstchen",
}
_FULL = {
    **WUERSTCHEN_OF_ONETRAINER,
    **FULL_OF_ONETRAINER,
    "prior": {"train": True, "weight_dtype": "BFLOAT_16"},
}
ONETRAINER = {
    "LoRA": OneTrainerConfig({**WUERSTCHEN_OF_ONETRAINER}, {**_VALUES, "parts.prior.dtype": "float8"}),
    "fine-tune": OneTrainerConfig(
        {**_FULL, "output_model_format": "DIFFUSERS"},
        {**_VALUES, "parts.prior.train": True, "training.trains": "full"},
    ),
    "fine-tune, one file": OneTrainerConfig(
        {**_FULL, "output_model_format": "SAFETENSORS"},
        {**_VALUES, "output.model_format": "single_file"},
    ),
}

TINY = FlowModel(
    "wuerstchen",
    write_wuerstchen_folder,
    wuerstchen_pipelines,
    _pipeline_text,
    _pipeline_sample,
    published_shapes={
        "projection.weight": (1536, 16, 1, 1),
        "cond_mapper.0.weight": (1536, 1280),
        "blocks.2.attention.attn.in_proj_weight": (4608, 1536),
        "blocks.95.attention.attn.out_proj.weight": (1536, 1536),
        "blocks.94.mapper.weight": (3072, 64),
        "blocks.0.channelwise.2.gamma": (1, 1, 1, 6144),
        "out.1.weight": (32, 1536, 1, 1),
    },
    published_weights=993_636_896,
    places=("decoder",),
    untrained=("text_encoder",),
    attends_to_padding=True,
    side_px=128,
    unread=("kohya", "comfyui", "peft"),
    onetrainer=ONETRAINER,
)
