"""A tiny random ERNIE-Image, written as a diffusers folder: a whole Ministral 3 with its vision tower."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, ErnieImagePipeline, FlowMatchEulerDiscreteScheduler
from diffusers.models.transformers.transformer_ernie_image import ErnieImageTransformer2DModel
from tokenizers import AddedToken, Tokenizer, processors
from transformers import Mistral3Config, Mistral3Model, MistralConfig, PixtralVisionConfig, PreTrainedTokenizerFast

from modules.families.ernie_image.spec import MAX_TOKENS
from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.flux2_klein import tiny_flux2_vae
from tests.builders.krea2 import TINY as KREA2
from tests.builders.models import write_folder
from tests.builders.pipelines import latents_and_image
from tests.builders.z_image import write_tokenizer

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 4.0}
_TEXT_WIDTH = 24


def tiny_transformer() -> ErnieImageTransformer2DModel:
    """A transformer with two blocks, whose modulation and output are random, too.

    Its time has little effect, as in a trained model: it reads 1000 times the last bit in which our noise levels differ
    from diffusers'.
    """
    transformer = ErnieImageTransformer2DModel(
        hidden_size=32,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=48,
        text_in_dim=_TEXT_WIDTH,
        rope_axes_dim=(4, 6, 6),
    )
    with torch.no_grad():
        for layer, deviation in ((transformer.adaLN_modulation[-1], 0.5), (transformer.final_linear, 0.1)):
            layer.weight.normal_(std=deviation)
            layer.bias.normal_(std=deviation)
        transformer.time_embedding.linear_1.weight.mul_(0.05)
    return transformer


def tiny_ministral() -> Mistral3Model:
    """A decoder with three layers and the rotary embedding of the published one, and a vision tower."""
    text = MistralConfig(
        vocab_size=280,
        hidden_size=_TEXT_WIDTH,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=12,
        max_position_embeddings=4096,
        sliding_window=None,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 256,
        },
    )
    vision = PixtralVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14
    )
    return Mistral3Model(Mistral3Config(text_config=text, vision_config=vision))


def write_ernie_image_folder(folder: Path, *, has_start: bool = True) -> Path:
    """Write the model; with `has_start` its tokenizer puts a start token first."""
    parts = {"transformer": tiny_transformer, "text_encoder": tiny_ministral, "vae": tiny_flux2_vae}
    index = {"tokenizer": ["transformers", "TokenizersBackend"], "pe": [None, None], "pe_tokenizer": [None, None]}
    write_folder(folder, "ErnieImagePipeline", parts, SCHEDULER, seed=0, **index)
    write_tokenizer(folder / "tokenizer")
    file = folder / "tokenizer" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<pad>", "<s>")])
    if has_start:
        start = ("<s>", tokenizer.token_to_id("<s>"))
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[start])
    tokenizer.save(str(file))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "bos_token": "<s>"}
    (file.parent / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": MAX_TOKENS}))
    return folder


def ernie_image_pipeline(folder: Path, family: Any) -> ErnieImagePipeline:
    """diffusers' pipeline with the whole text encoder, the VAE's published config, and a loaded model's other parts."""
    vae = AutoencoderKLFlux2.from_config(dict(family.vae.config), batch_norm_eps=1e-4)
    vae.load_state_dict(family.vae.state_dict())
    pipe = ErnieImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=vae.eval(),
        text_encoder=Mistral3Model.from_pretrained(folder / "text_encoder", local_files_only=True).eval(),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True),
        transformer=family.denoiser,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: ErnieImagePipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    [states_LD] = pipe.encode_prompt(prompt, device=torch.device("cpu"))
    return {"states": states_LD[None]}


def _pipeline_sample(
    pipe: ErnieImagePipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    patches = pipe._patchify_latents(noise_BCHW)
    latents, image = latents_and_image(pipe, noise_BCHW, guidance, prompt=prompt, latents=patches)
    return pipe._unpatchify_latents(latents), image


_OF_ONETRAINER = {"model_type": "ERNIE", "base_model_name": "baidu/ERNIE-Image", "learning_rate": 0.0003}
ONETRAINER = {
    "24 GB": OneTrainerConfig({**_OF_ONETRAINER, "transformer": {"train": True, "weight_dtype": "INT_W8A8"}}),
    "8 GB": OneTrainerConfig(
        {**_OF_ONETRAINER, "transformer": {"train": True, "weight_dtype": "FLOAT_8", "offload_fraction": 0.5}}
    ),
    "full": OneTrainerConfig({**_OF_ONETRAINER, **FULL_OF_ONETRAINER, "output_model_format": "DIFFUSERS"}),
}


TINY = FlowModel(
    "ernie_image",
    write_ernie_image_folder,
    ernie_image_pipeline,
    _pipeline_text,
    _pipeline_sample,
    other_forms=KREA2.other_forms,
    published_shapes={
        "x_embedder.proj.weight": (4096, 128, 1, 1),
        "text_proj.weight": (4096, 3072),
        "time_embedding.linear_1.weight": (4096, 4096),
        "adaLN_modulation.1.weight": (24576, 4096),
        "layers.35.adaLN_mlp_ln.weight": (4096,),
        "layers.35.self_attention.to_out.0.weight": (4096, 4096),
        "layers.35.self_attention.norm_k.weight": (128,),
        "layers.35.mlp.gate_proj.weight": (12288, 4096),
        "layers.35.mlp.linear_fc2.weight": (4096, 12288),
        "final_norm.linear.weight": (8192, 4096),
        "final_linear.weight": (128, 4096),
    },
    published_weights=8_033_490_048,
    unread=("kohya", "comfyui", "mixed"),
    onetrainer=ONETRAINER,
)
