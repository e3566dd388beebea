"""A tiny random Ideogram 4, written as a diffusers folder: two transformers, and a Qwen3-VL of 36 small layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Ideogram4Pipeline
from diffusers.models.transformers.transformer_ideogram4 import Ideogram4Transformer2DModel
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLModel

from modules.formats.safetensors_io import read_safetensors
from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.flux2_klein import tiny_flux2_vae
from tests.builders.models import write_folder
from tests.builders.pipelines import latents_and_image
from tests.builders.z_image import write_tokenizer
from trainer.__main__ import main

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 1.0}
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}{{ c.text }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT_WIDTH, _NUM_STATES = 8, 13
_MAX_TOKENS = 2048


def tiny_transformer() -> Ideogram4Transformer2DModel:
    """A transformer with two blocks, whose modulations, norms and embeddings matter.

    Its time has little effect, as in a trained model: it reads 10,000 times the last bit in which our noise levels
    differ from diffusers'.
    """
    transformer = Ideogram4Transformer2DModel(
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        intermediate_size=48,
        adaln_dim=16,
        llm_features_dim=_TEXT_WIDTH * _NUM_STATES,
        mrope_section=(4, 2, 2),
    )
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if "adaln_modulation" in name or "indicator" in name:
                parameter.normal_(std=0.5)
            elif "norm" in name:
                parameter.normal_(mean=1.0, std=0.1)
        transformer.final_layer.linear.weight.normal_(std=0.1)
        # Not one of them alone: its weights would be among the smallest of float16.
        for layer in (transformer.t_embedding.mlp_in, transformer.t_embedding.mlp_out, transformer.adaln_proj):
            layer.weight.mul_(0.1)
    return transformer


def tiny_qwen_vl() -> Qwen3VLModel:
    """A vision-language model with as many layers as the published one."""
    text = {
        "vocab_size": 260,
        "hidden_size": _TEXT_WIDTH,
        "intermediate_size": 8,
        "num_hidden_layers": 36,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e6,
            "mrope_section": [2, 2, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": _TEXT_WIDTH,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
        "patch_size": 4,
    }
    return Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision))


def tiny_vae() -> AutoencoderKLFlux2:
    """FLUX.2's, with statistics in Ideogram's order: nearly the same at the four places of a channel."""
    vae = tiny_flux2_vae()
    places = torch.linspace(0.0, 0.02, 4)[:, None]
    vae.bn.running_mean.copy_((torch.linspace(-0.5, 0.5, 32) + places).flatten())
    vae.bn.running_var.copy_((torch.linspace(0.5, 2.0, 32) + places).flatten())
    return vae


def write_ideogram4_folder(folder: Path) -> Path:
    """Write the model."""
    parts = {
        "transformer": tiny_transformer,
        "text_encoder": tiny_qwen_vl,
        "vae": tiny_vae,
        "unconditional_transformer": tiny_transformer,
    }
    index = {"tokenizer": ["transformers", "PreTrainedTokenizerFast"], "prompt_enhancer_head": [None, None]}
    write_folder(folder, "Ideogram4Pipeline", parts, SCHEDULER, seed=0, **index)
    write_tokenizer(folder / "tokenizer")
    settings = folder / "tokenizer" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": CHAT_TEMPLATE}))
    return folder


def theirs_of(module: Any) -> Ideogram4Transformer2DModel:
    """diffusers' own transformer with the weights of one of ours."""
    transformer = Ideogram4Transformer2DModel.from_config(dict(module.config))
    transformer.load_state_dict(module.state_dict())
    return transformer.eval()


def ideogram4_pipeline(folder: Path, family: Any) -> Ideogram4Pipeline:
    """diffusers' pipeline of a loaded model's parts, with the whole text encoder and transformers' own tokenizer. The
    transformers are of diffusers' class while it samples.
    """
    pipe = Ideogram4Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=family.vae,
        text_encoder=Qwen3VLModel.from_pretrained(folder / "text_encoder", local_files_only=True).eval(),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True),
        transformer=family.denoiser,
        unconditional_transformer=family.modules["unconditional_transformer"],
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


@torch.no_grad()
def _pipeline_text(pipe: Ideogram4Pipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    states_1LD, _, _, roles_1L = pipe.encode_prompt(prompt, 1, 1, _MAX_TOKENS, torch.device("cpu"))
    return {"states": states_1LD[:, roles_1L[0] == 3]}


def in_their_tokens(latents_BCHW: torch.Tensor) -> torch.Tensor:
    """Latents as the pipeline packs them, the inverse of its last step."""
    batch, channels, height, width = latents_BCHW.shape
    rows = latents_BCHW.view(batch, channels, height // 2, 2, width // 2, 2)
    return rows.permute(0, 2, 4, 3, 5, 1).reshape(batch, height * width // 4, 4 * channels)


def _pipeline_sample(
    pipe: Ideogram4Pipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, channels, height, width = noise_BCHW.shape
    ours = {name: getattr(pipe, name) for name in ("transformer", "unconditional_transformer")}
    pipe.register_modules(**{name: theirs_of(module) for name, module in ours.items()})
    latents, image = latents_and_image(
        pipe,
        noise_BCHW,
        guidance,
        prompt=prompt,
        latents=in_their_tokens(noise_BCHW),
        guidance_schedule=None,
        max_sequence_length=_MAX_TOKENS,
    )
    pipe.register_modules(**ours)
    places = latents.view(batch, height // 2, width // 2, 2, 2, channels).permute(0, 5, 1, 3, 2, 4)
    return places.reshape(noise_BCHW.shape), image


def _in_native_peft_names(lora: Path, folder: Path) -> list[Path]:
    """Write a LoRA as ai-toolkit does: native names behind `diffusion_model.`, q, k and v in one matrix."""
    native = folder / "comfyui.safetensors"
    if not native.is_file():
        assert main(["convert", str(lora), str(native), "--to", "comfyui"]) == 0
    tensors, metadata = read_safetensors(native)
    named = {n.replace("lora_down", "lora_A").replace("lora_up", "lora_B"): t for n, t in tensors.items()}
    save_file(named, folder / "native.safetensors", metadata)
    return [folder / "native.safetensors"]


_OF_ONETRAINER = {
    "model_type": "IDEOGRAM_4",
    "base_model_name": "ideogram-ai/ideogram-4-fp8",
    "learning_rate": 0.0003,
    "timestep_distribution": "LOGIT_NORMAL",
}
ONETRAINER = {
    "24 GB": OneTrainerConfig({**_OF_ONETRAINER, "transformer": {"train": True, "weight_dtype": "FLOAT_8"}}),
    "16 GB": OneTrainerConfig(
        {**_OF_ONETRAINER, "transformer": {"train": True, "weight_dtype": "INT_W8A8", "offload_fraction": 0.3}}
    ),
    "8 GB": OneTrainerConfig(
        {**_OF_ONETRAINER, "transformer": {"train": True, "weight_dtype": "FLOAT_8", "offload_fraction": 0.6}}
    ),
    "full": OneTrainerConfig({**_OF_ONETRAINER, **FULL_OF_ONETRAINER, "output_model_format": "DIFFUSERS"}),
}


TINY = FlowModel(
    "ideogram4",
    write_ideogram4_folder,
    ideogram4_pipeline,
    _pipeline_text,
    _pipeline_sample,
    other_forms=_in_native_peft_names,
    published_shapes={
        "input_proj.weight": (4608, 128),
        "llm_cond_norm.weight": (53248,),
        "llm_cond_proj.weight": (4608, 53248),
        "t_embedding.mlp_in.weight": (4608, 4608),
        "adaln_proj.weight": (512, 4608),
        "embed_image_indicator.weight": (2, 4608),
        "layers.33.attention.qkv.weight": (13824, 4608),
        "layers.33.attention.o.weight": (4608, 4608),
        "layers.33.attention.norm_k.weight": (256,),
        "layers.33.feed_forward.w2.weight": (4608, 12288),
        "layers.33.ffn_norm2.weight": (4608,),
        "layers.33.adaln_modulation.weight": (18432, 512),
        "final_layer.linear.weight": (128, 4608),
        "final_layer.adaln_modulation.weight": (4608, 512),
    },
    published_weights=9_279_288_448,
    unread=("kohya",),
    onetrainer=ONETRAINER,
)
