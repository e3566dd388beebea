"""A tiny random HunyuanVideo, written as a diffusers folder with tokenizers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLHunyuanVideo, FlowMatchEulerDiscreteScheduler, HunyuanVideoPipeline
from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoTransformer3DModel
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

from modules.families.hunyuan_video.model import DROPPED, TEMPLATE
from modules.formats.safetensors_io import read_safetensors
from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.flux import CLIP_WIDTH, tiny_clip
from tests.builders.models import write_folder
from tests.builders.pipelines import clip_tokenizer

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 7.0}
TEXT_WIDTH = 24
_SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<pad>")


def _message_start() -> str:
    """The start of the system message that is one token, so that the template before a prompt has as many tokens as the
    published one; all else has a token for each byte.
    """
    rest = re.sub("|".join(re.escape(token) for token in _SPECIAL), "#", TEMPLATE.before)
    [message] = re.findall(r"Describe.*used in the video:", rest)
    return message[: len(rest) - DROPPED + 1]


def tiny_transformer(*, image_condition_type: str | None = None) -> HunyuanVideoTransformer3DModel:
    """A transformer with two double and two single blocks, and one that refines the text."""
    return HunyuanVideoTransformer3DModel(
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        text_embed_dim=TEXT_WIDTH,
        pooled_projection_dim=CLIP_WIDTH,
        rope_axes_dim=(4, 6, 6),
        image_condition_type=image_condition_type,
    )


def tiny_llama() -> LlamaModel:
    """Llama with four layers, of which the last two are not read, and two query heads for each of keys."""
    return LlamaModel(
        LlamaConfig(
            vocab_size=272,
            hidden_size=TEXT_WIDTH,
            intermediate_size=32,
            num_hidden_layers=4,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def tiny_hunyuan_vae() -> AutoencoderKLHunyuanVideo:
    """An autoencoder of 16 latent channels and a factor of 8."""
    return AutoencoderKLHunyuanVideo(block_out_channels=(8, 8, 16, 16), layers_per_block=1, norm_num_groups=4)


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token for each byte, which begins every text with the start token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.add_tokens([AddedToken(_message_start(), normalized=False)])
    start = (_SPECIAL[0], tokenizer.token_to_id(_SPECIAL[0]))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{start[0]} $A", special_tokens=[start])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=_SPECIAL[0], pad_token=_SPECIAL[-1], padding_side="right"
    )
    fast.save_pretrained(folder)


def write_hunyuan_video_folder(folder: Path, *, image_condition_type: str | None = None) -> Path:
    """Write the model."""
    parts = {
        "transformer": lambda: tiny_transformer(image_condition_type=image_condition_type),
        "text_encoder": tiny_llama,
        "text_encoder_2": tiny_clip,
        "vae": tiny_hunyuan_vae,
    }
    index = ["transformers", "PreTrainedTokenizerFast"]
    write_folder(folder, "HunyuanVideoPipeline", parts, SCHEDULER, seed=0, tokenizer=index)
    write_tokenizer(folder / "tokenizer")
    clip_tokenizer().save_pretrained(folder / "tokenizer_2")
    return folder


def hunyuan_video_pipeline(folder: Path, family: Any) -> HunyuanVideoPipeline:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizers and diffusers' own VAE."""
    vae = AutoencoderKLHunyuanVideo.from_config(family.vae.config)
    vae.load_state_dict(family.vae.state_dict())
    pipe = HunyuanVideoPipeline(
        text_encoder=family.modules["text_encoder"],
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True),
        transformer=family.denoiser,
        vae=vae.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        text_encoder_2=family.modules["text_encoder_2"],
        tokenizer_2=clip_tokenizer(),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: HunyuanVideoPipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    """The states of a prompt's own tokens: the pipeline has those of the padding, too, with a mask."""
    states, pooled, mask = pipe.encode_prompt([prompt], device="cpu")
    assert states.shape[1] == mask.shape[1] == 256
    return {"states": states[:, mask[0].bool()], "pooled": pooled}


def _pipeline_sample(
    pipe: HunyuanVideoPipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    options = {"guidance_scale": guidance, "num_inference_steps": 4, "height": height, "width": width, "num_frames": 1}
    noise_BCFHW = noise_BCHW.unsqueeze(2)
    latents, video = (pipe([prompt], latents=noise_BCFHW, output_type=k, **options).frames for k in ("latent", "pt"))
    return latents.squeeze(2), video.squeeze(1)


_KEYS = {
    "model_type": "HUNYUAN_VIDEO",
    "base_model_name": "hunyuanvideo-community/HunyuanVideo",
    "learning_rate": 0.0003,
    "frames": "25",  # the default of all files of that age; images have one
    "transformer": {"train": True, "weight_dtype": "NFLOAT_4", "guidance_scale": 1.0},
    "text_encoder": {"train": False, "weight_dtype": "NFLOAT_4"},
    "text_encoder_2": {"train": False, "weight_dtype": "BFLOAT_16"},
}
_VALUES = {
    "model.family": {"name": "hunyuan_video", "guidance": 1.0},
    "parts.transformer.dtype": "nfloat4",
    "parts.text_encoder.dtype": "nfloat4",
    "data.caption_dropout": 0.0,
}
ONETRAINER = {
    "lora": OneTrainerConfig(_KEYS, _VALUES),
    "full": OneTrainerConfig({**_KEYS, **FULL_OF_ONETRAINER, "output_model_format": "DIFFUSERS"}),
}


def _in_native_names(lora: Path, folder: Path) -> list[Path]:
    """Write a LoRA as musubi-tuner does: in kohya's form, which ours has already."""
    tensors, metadata = read_safetensors(folder / "kohya.safetensors")
    save_file(tensors, folder / "musubi.safetensors", metadata)
    return [folder / "musubi.safetensors"]


TINY = FlowModel(
    "hunyuan_video",
    write_hunyuan_video_folder,
    hunyuan_video_pipeline,
    _pipeline_text,
    _pipeline_sample,
    published_shapes={
        "img_in.proj.weight": (3072, 16, 1, 2, 2),
        "txt_in.input_embedder.weight": (3072, 4096),
        "txt_in.t_embedder.mlp.0.weight": (3072, 256),
        "txt_in.c_embedder.linear_1.weight": (3072, 4096),
        "txt_in.individual_token_refiner.blocks.1.self_attn_qkv.weight": (9216, 3072),
        "txt_in.individual_token_refiner.blocks.1.norm2.bias": (3072,),
        "txt_in.individual_token_refiner.blocks.1.mlp.fc1.weight": (12288, 3072),
        "txt_in.individual_token_refiner.blocks.1.adaLN_modulation.1.weight": (6144, 3072),
        "time_in.mlp.0.weight": (3072, 256),
        "vector_in.in_layer.weight": (3072, 768),
        "guidance_in.mlp.2.weight": (3072, 3072),
        "double_blocks.19.img_mod.linear.weight": (18432, 3072),
        "double_blocks.19.img_attn_qkv.weight": (9216, 3072),
        "double_blocks.19.img_attn_q_norm.weight": (128,),
        "double_blocks.19.txt_attn_proj.weight": (3072, 3072),
        "double_blocks.19.txt_mlp.fc2.weight": (3072, 12288),
        "single_blocks.39.linear1.weight": (21504, 3072),
        "single_blocks.39.linear2.weight": (3072, 15360),
        "single_blocks.39.k_norm.weight": (128,),
        "single_blocks.39.modulation.linear.weight": (9216, 3072),
        "final_layer.adaLN_modulation.1.weight": (6144, 3072),
        "final_layer.linear.weight": (64, 3072),
    },
    published_weights=12_821_012_544,
    unread=("kohya", "comfyui"),  # diffusers divides fused layers as at the published size
    onetrainer=ONETRAINER,
)
