"""A tiny random Qwen-Image 2.1, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage21, FlowMatchEulerDiscreteScheduler, QwenImage21Pipeline
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21Transformer2DModel
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from tests.builders.flow_models import FlowModel
from tests.builders.krea2 import tiny_qwen_vl
from tests.builders.models import write_folder
from tests.builders.qwen_image import SCHEDULER
from tests.builders.z_image import write_tokenizer

_IMAGE_TOKEN = "<|image_pad|>"


class TextProcessor:
    """The processor of the pipeline for prompts without images: transformers' own needs torchvision."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer

    def __call__(self, text: list[str], **options: Any) -> Any:
        """Return the tokens of prompts in their template."""
        return self.tokenizer(text, **options)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **_: object) -> list[list[int]]:
        """Return the tokens of the message of the system, as Qwen3-VL's template has it."""
        [message] = messages
        text = "".join(part["text"] for part in message["content"])
        return [self.tokenizer(f"<|im_start|>{message['role']}\n{text}<|im_end|>\n").input_ids]


def tiny_transformer() -> QwenImage21Transformer2DModel:
    """A transformer with two blocks, whose gates are open. Its time has little effect, as in a trained model: the
    embedding multiplies by 1000 the last bit in which our noise levels differ from diffusers'.
    """
    transformer = QwenImage21Transformer2DModel(
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        context_in_dim=24,
        mlp_ratio=2,
        axes_dims_rope=(4, 6, 6),
    )
    with torch.no_grad():
        transformer.time_text_embed.timestep_embedder.linear_1.weight.mul_(0.05)
        transformer.time_text_embed.timestep_embedder.linear_2.weight.mul_(4.0)
        transformer.modulation[1].weight.mul_(4.0)
    return transformer


def tiny_qwen_vl_with_head() -> Qwen3VLForConditionalGeneration:
    """Krea 2's vision-language model with its head; the norm behind its last layer is no identity."""
    config: Qwen3VLConfig = tiny_qwen_vl().config
    model = Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        model.model.language_model.norm.weight.uniform_(0.5, 2.0)
    return model


def tiny_vae() -> AutoencoderKLQwenImage21:
    """An autoencoder with 64 latent channels and a factor of 16, whose halves have different widths."""
    return AutoencoderKLQwenImage21(base_dim=4, decoder_base_dim=6, dim_mult=[1, 1, 2, 4, 4], num_res_blocks=1)


def write_qwen_image21_folder(folder: Path) -> Path:
    """Write the model; its tokenizer is in the folder of a processor."""
    parts = {"transformer": tiny_transformer, "text_encoder": tiny_qwen_vl_with_head, "vae": tiny_vae}
    write_folder(
        folder, "QwenImage21Pipeline", parts, SCHEDULER, seed=0, processor=["transformers", "Qwen3VLProcessor"]
    )
    write_tokenizer(folder / "processor")
    file = folder / "processor" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([AddedToken(_IMAGE_TOKEN, special=True)])
    tokenizer.save(str(file))
    return folder


def transformer_of_diffusers(denoiser: Any) -> QwenImage21Transformer2DModel:
    """diffusers' own class with the weights of ours."""
    transformer = QwenImage21Transformer2DModel.from_config(dict(denoiser.config))
    transformer.load_state_dict(denoiser.state_dict())
    return transformer.eval()


def qwen_image21_pipeline(folder: Path, family: Any) -> QwenImage21Pipeline:
    """diffusers' pipeline of a loaded model's parts. The VAE and the text encoder are the libraries' own classes, and
    the transformer is while it samples.
    """
    vae = AutoencoderKLQwenImage21.from_config(dict(family.vae.config))
    vae.load_state_dict(family.vae.state_dict())
    encoder = Qwen3VLForConditionalGeneration.from_pretrained(folder / "text_encoder", local_files_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "processor", local_files_only=True)
    pipe = QwenImage21Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=vae.eval(),
        text_encoder=encoder.eval(),
        processor=TextProcessor(tokenizer),
        transformer=family.denoiser,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: QwenImage21Pipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    states, mask, _ = pipe.encode_prompt([prompt])
    assert mask is None
    return {"states": states}


def _pipeline_sample(
    pipe: QwenImage21Pipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (16 * side for side in noise_BCHW.shape[-2:])
    pipe.register_modules(transformer=transformer_of_diffusers(pipe.transformer))
    options = {
        "negative_prompt": [""],
        "true_cfg_scale": guidance,
        "num_inference_steps": 4,
        "height": height,
        "width": width,
        "latents": noise_BCHW.flatten(2).transpose(1, 2),
    }
    latents, images = (pipe([prompt], output_type=kind, **options).images for kind in ("latent", "pt"))
    return pipe._unpack_latents(latents, height, width, 16).squeeze(2), images[:, :3]


TINY = FlowModel(
    "qwen_image21",
    write_qwen_image21_folder,
    qwen_image21_pipeline,
    _pipeline_text,
    _pipeline_sample,
    published_shapes={
        "img_in.weight": (4096, 64),
        "txt_in.text_norm.weight": (4096,),
        "txt_in.in_layer.weight": (4096, 4096),
        "time_text_embed.timestep_embedder.linear_1.weight": (4096, 256),
        "modulation.1.weight": (16384, 4096),
        "transformer_blocks.31.attn.to_out.0.weight": (4096, 4096),
        "transformer_blocks.31.attn.norm_k.weight": (128,),
        "transformer_blocks.31.img_mlp.gate_up.weight": (24576, 4096),
        "transformer_blocks.31.img_mlp.out.weight": (4096, 12288),
        "norm_out.linear.weight": (4096, 4096),
        "proj_out.weight": (64, 4096),
    },
    published_weights=7_115_124_736,
    unread=("kohya", "comfyui"),
)
