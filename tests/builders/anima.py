"""A tiny random Anima, written as the folder of a modular pipeline with its two tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AnimaAutoBlocks, AnimaTextConditioner, ClassifierFreeGuidance, FlowMatchEulerDiscreteScheduler
from transformers import PreTrainedTokenizerFast, T5Tokenizer

from modules.families.anima.transformer import CosmosTransformer3DModel
from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.models import write_folder
from tests.builders.qwen_vae import tiny_qwen_vae
from tests.builders.t5 import NUM_SENTINELS, pieces, write_t5_tokenizer
from tests.builders.z_image import tiny_qwen, write_tokenizer

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}
MIN_TOKENS = 24
"""The length to which its prompts are padded, 512 in the published model."""


def tiny_transformer() -> CosmosTransformer3DModel:
    """A transformer with two blocks."""
    return CosmosTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        mlp_ratio=2.0,
        text_embed_dim=24,
        adaln_lora_dim=8,
        max_size=(4, 256, 256),
        rope_scale=(1.0, 4.0, 4.0),
        extra_pos_embed_type=None,
    )


def tiny_conditioner() -> AnimaTextConditioner:
    """A conditioner with one block, for the states of `tiny_qwen` and the tokenizer of `tests.builders.t5`."""
    return AnimaTextConditioner(
        source_dim=24,
        target_dim=24,
        model_dim=24,
        num_layers=1,
        num_attention_heads=2,
        mlp_ratio=2.0,
        target_vocab_size=len(pieces()) + NUM_SENTINELS + 4,
        min_sequence_length=MIN_TOKENS,
    )


def write_anima_folder(folder: Path) -> Path:
    """Write the model."""
    parts = {
        "transformer": tiny_transformer,
        "text_encoder": tiny_qwen,
        "text_conditioner": tiny_conditioner,
        "vae": tiny_qwen_vae,
    }
    tokenizer, t5 = ["transformers", "PreTrainedTokenizerFast"], ["transformers", "T5Tokenizer"]
    write_folder(folder, "AnimaModularPipeline", parts, SCHEDULER, seed=0, tokenizer=tokenizer, t5_tokenizer=t5)
    write_tokenizer(folder / "tokenizer")
    write_t5_tokenizer(folder / "t5_tokenizer")
    classes = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").unlink()
    index: dict[str, Any] = {
        name: [*value, {"pretrained_model_name_or_path": "no/where", "subfolder": name, "type_hint": value}]
        if isinstance(value, list)
        else value
        for name, value in classes.items()
    }
    index["_blocks_class_name"] = "AnimaAutoBlocks"
    (folder / "modular_model_index.json").write_text(json.dumps(index))
    return folder


def anima_pipeline(folder: Path, family: Any) -> Any:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizers."""
    pipe = AnimaAutoBlocks().init_pipeline()
    pipe.update_components(
        text_encoder=family.modules["text_encoder"],
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True),
        t5_tokenizer=T5Tokenizer.from_pretrained(folder / "t5_tokenizer", local_files_only=True),
        text_conditioner=family.modules["text_conditioner"],
        transformer=family.denoiser,
        vae=tiny_video_vae(family.vae),
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def tiny_video_vae(vae: torch.nn.Module) -> torch.nn.Module:
    """diffusers' own VAE, which takes videos, with the weights of a loaded one."""
    own = tiny_qwen_vae()
    own.load_state_dict(vae.state_dict())
    return own


def _pipeline_text(pipe: Any, prompt: str) -> Mapping[str, torch.Tensor]:
    state = pipe(prompt=prompt, max_sequence_length=4096, **_FAST)
    num_tokens = int(state.get("t5_attention_mask").sum())
    text_1LD = state.get("prompt_embeds")
    assert text_1LD.shape[1] == max(num_tokens, MIN_TOKENS)
    assert not text_1LD[:, num_tokens:].any()
    return {"states": text_1LD[:, :num_tokens]}


_FAST = {"num_inference_steps": 1, "height": 16, "width": 16, "output_type": "pt"}


def _pipeline_sample(
    pipe: Any, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    pipe.update_components(guider=ClassifierFreeGuidance(guidance_scale=guidance))
    options = {"num_inference_steps": 4, "height": height, "width": width, "output_type": "pt"}
    state = pipe(prompt=prompt, latents=noise_BCHW.unsqueeze(2), **options)
    return state.get("latents").squeeze(2), state.get("images")


ANIMA_OF_ONETRAINER = {
    "model_type": "ANIMA",
    "base_model_name": "circlestone-labs/Anima-Base-v1.0-Diffusers",
    "learning_rate": 3e-05,
    "layer_filter": "attn1,attn2,ff",
    "quantization": {"layer_filter": "transformer_block", "layer_filter_preset": "blocks"},
}
ONETRAINER = {
    "lora": OneTrainerConfig(ANIMA_OF_ONETRAINER, {"training.noise.shift": 1.0, "parts.transformer.dtype": "float8"}),
    "full": OneTrainerConfig(
        {
            **ANIMA_OF_ONETRAINER,
            **FULL_OF_ONETRAINER,
            "learning_rate": 1e-06,
            "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"},
            "output_model_format": "ORIGINAL_SINGLE_FILE",
        },
        {"training.noise.shift": 1.0},
    ),
}


TINY = FlowModel(
    "anima",
    write_anima_folder,
    anima_pipeline,
    _pipeline_text,
    _pipeline_sample,
    published_shapes={
        "x_embedder.proj.1.weight": (2048, 68),
        "t_embedder.1.linear_2.weight": (6144, 2048),
        "t_embedding_norm.weight": (2048,),
        "blocks.27.self_attn.q_proj.weight": (2048, 2048),
        "blocks.27.self_attn.q_norm.weight": (128,),
        "blocks.27.cross_attn.k_proj.weight": (2048, 1024),
        "blocks.27.cross_attn.output_proj.weight": (2048, 2048),
        "blocks.27.adaln_modulation_mlp.2.weight": (6144, 256),
        "blocks.27.mlp.layer1.weight": (8192, 2048),
        "final_layer.adaln_modulation.1.weight": (256, 2048),
        "final_layer.linear.weight": (64, 2048),
    },
    published_weights=1_956_405_248,
    unread=("kohya", "comfyui"),
    onetrainer=ONETRAINER,
)
