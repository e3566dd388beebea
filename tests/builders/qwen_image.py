"""A tiny random Qwen-Image, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
)
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import AutoencoderKLQwenImage
from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformer2DModel
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from modules.families.parts.chat_text import DESCRIBE_IMAGE, ChatTemplate
from modules.families.qwen_image.model import DROPPED, EDIT_DROPPED, EDIT_IMAGE, EMPTY
from modules.formats.peft_settings import PEFT_SETTINGS
from modules.formats.safetensors_io import read_safetensors
from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.models import write_folder
from tests.builders.qwen_vae import tiny_qwen_vae

# The numbers of tokens between which the shift grows are those of small images.
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "base_image_seq_len": 4,
    "base_shift": 0.5,
    "max_image_seq_len": 128,
    "max_shift": 0.9,
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "shift_terminal": 0.02,
    "use_dynamic_shifting": True,
}
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SEEING = (*_SPECIAL, "<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
IMAGE_PAD_ID = 256 + _SEEING.index("<|image_pad|>")


def _pieces(template: ChatTemplate, num_tokens: int) -> list[str]:
    """Divide the system message so that the template before a prompt has as many tokens as the published one."""
    message, rest = template.before.removeprefix("<|im_start|>").split("<|im_end|>")
    assert rest == "\n<|im_start|>user\n"
    count = num_tokens - len(["<|im_start|>", "<|im_end|>", "\n", "<|im_start|>", *"user\n"])
    bounds = [len(message) * index // count for index in range(count + 1)]
    pieces = [message[start:stop] for start, stop in pairwise(bounds)]
    if len(set(pieces)) < count:  # then all but the last characters are one token
        return [message[: 1 - count]]
    return pieces


def tiny_transformer(*, zero_cond_t: bool = False) -> QwenImageTransformer2DModel:
    """A transformer with two blocks."""
    return QwenImageTransformer2DModel(
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 6, 6),
        zero_cond_t=zero_cond_t,
    )


def tiny_qwen_vl(*, num_layers: int = 2) -> Qwen2_5_VLForConditionalGeneration:
    """A model with a few layers for text and one for images."""
    text = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        "bos_token_id": None,
        "eos_token_id": None,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 32,
        "fullatt_block_indexes": [0],
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE_PAD_ID)
    return Qwen2_5_VLForConditionalGeneration(config)


def write_tokenizer(folder: Path, *, edits: bool = False) -> None:
    """Write a tokenizer with a token for each byte, without tokenizer.json, as the published one is."""
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    (folder / "vocab.json").write_text(json.dumps({character: index for index, character in enumerate(alphabet)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    special = _SEEING if edits else _SPECIAL
    pieces = _pieces(EDIT_IMAGE, EDIT_DROPPED) if edits else _pieces(DESCRIBE_IMAGE, DROPPED)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(len(alphabet) + index): {"content": token, "special": token in special, **flags}
        for index, token in enumerate((*special, *pieces))
    }
    config = {"tokenizer_class": "Qwen2Tokenizer", "pad_token": _SPECIAL[0], "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_qwen_image_folder(folder: Path) -> Path:
    """Write the model."""
    parts = {"transformer": tiny_transformer, "text_encoder": tiny_qwen_vl, "vae": tiny_qwen_vae}
    write_folder(folder, "QwenImagePipeline", parts, SCHEDULER, seed=0, tokenizer=["transformers", "Qwen2Tokenizer"])
    write_tokenizer(folder / "tokenizer")
    return folder


def write_qwen_edit_folder(folder: Path, *, is_plus: bool = True, zero_cond_t: bool = False) -> Path:
    """Write an editing model: Qwen-Image-Edit-2509, the first Qwen-Image-Edit, or 2511 (`zero_cond_t`)."""
    parts = {
        "transformer": lambda: tiny_transformer(zero_cond_t=zero_cond_t),
        "text_encoder": tiny_qwen_vl,
        "vae": tiny_qwen_vae,
    }
    pipeline = "QwenImageEditPlusPipeline" if is_plus else "QwenImageEditPipeline"
    further = {"tokenizer": ["transformers", "Qwen2Tokenizer"], "processor": ["transformers", "Qwen2VLProcessor"]}
    write_folder(folder, pipeline, parts, SCHEDULER, seed=0, **further)
    write_tokenizer(folder / "tokenizer", edits=True)
    shutil.copytree(folder / "tokenizer", folder / "processor")
    processor = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056}
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def qwen_edit_pipeline(folder: Path, family: Any) -> QwenImageEditPlusPipeline | QwenImageEditPipeline:
    """diffusers' editing pipeline of a loaded model's parts.

    Its text encoder gets the types of tokens, too: without them, transformers 5 gives those of images the positions of
    text (diffusers issue 14194).
    """
    plain = qwen_image_pipeline(folder, family)
    images = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12845056)
    processor = _ImageProcessor(image_processor=images, tokenizer=plain.tokenizer)
    kind = QwenImageEditPipeline if family.variant == "edit_one" else QwenImageEditPlusPipeline
    pipe = kind(
        plain.scheduler, plain.vae, _with_types(plain.text_encoder), plain.tokenizer, processor, plain.transformer
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


class _ImageProcessor(Qwen2_5_VLProcessor):
    """The library's, without its processor of videos, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
        return type(argument)


def _with_types(encoder: Qwen2_5_VLForConditionalGeneration) -> Qwen2_5_VLForConditionalGeneration:
    def add(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return given, {**named, "mm_token_type_ids": (named["input_ids"] == IMAGE_PAD_ID).int()}

    encoder.register_forward_pre_hook(add, with_kwargs=True)
    return encoder


def qwen_image_pipeline(folder: Path, family: Any) -> QwenImagePipeline:
    """diffusers' pipeline of a loaded model's parts; the VAE and the text encoder are the libraries' own classes."""
    vae = AutoencoderKLQwenImage.from_config(family.vae.config)
    vae.load_state_dict(family.vae.state_dict())
    encoder = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder / "text_encoder", local_files_only=True)
    pipe = QwenImagePipeline(
        FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae.eval(),
        encoder.eval(),
        Qwen2Tokenizer.from_pretrained(folder / "tokenizer", local_files_only=True),
        family.denoiser,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: QwenImagePipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    states, mask = pipe.encode_prompt([prompt or EMPTY], max_sequence_length=512)
    assert mask is None
    return {"states": states}


def _pipeline_sample(
    pipe: QwenImagePipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    options = {
        "negative_prompt": [EMPTY],
        "true_cfg_scale": guidance,
        "num_inference_steps": 4,
        "height": height,
        "width": width,
    }
    packed = pipe._pack_latents(noise_BCHW, *noise_BCHW.shape)
    latents, images = (pipe([prompt], latents=packed, output_type=kind, **options).images for kind in ("latent", "pt"))
    return pipe._unpack_latents(latents, height, width, pipe.vae_scale_factor).squeeze(2), images


def _in_other_names(lora: Path, folder: Path) -> list[Path]:
    """Write a LoRA as SimpleTuner's LyCORIS does, and as ai-toolkit does, with alphas."""
    tensors, metadata = read_safetensors(lora)
    kept = {name: text for name, text in metadata.items() if name != PEFT_SETTINGS}
    alphas = {n.replace("lora_A.weight", "alpha"): torch.tensor(2.0) for n in tensors if n.endswith("lora_A.weight")}
    dotted = {n.replace("transformer.", "diffusion_model.", 1): t for n, t in (tensors | alphas).items()}
    save_file(dotted, folder / "dotted.safetensors", kept)
    flat = {}
    for name, tensor in (tensors | alphas).items():
        layer, _, factor = (
            name.removeprefix("transformer.").partition(".lora_")
            if ".lora_" in name
            else (*name.removeprefix("transformer.").rpartition("."),)
        )
        end = {"A.weight": "lora_down.weight", "B.weight": "lora_up.weight"}.get(factor, factor)
        flat[f"lycoris_{layer.replace('.', '_')}.{end}"] = tensor
    save_file(flat, folder / "lycoris.safetensors", kept)
    return [folder / "dotted.safetensors", folder / "lycoris.safetensors"]


QWEN_OF_ONETRAINER = {
    "model_type": "QWEN",
    "base_model_name": "Qwen/Qwen-Image",
    "learning_rate": 0.0003,
    "layer_filter": "attn,img_mlp,txt_mlp",
}
OFFLOADED = {**QWEN_OF_ONETRAINER, "gradient_checkpointing": "CPU_OFFLOADED"}
ONETRAINER = {
    "24 GB": OneTrainerConfig({**OFFLOADED, "layer_offload_fraction": 0.1}),
    "16 GB": OneTrainerConfig({**OFFLOADED, "layer_offload_fraction": 0.5}),
    "full": OneTrainerConfig({**QWEN_OF_ONETRAINER, **FULL_OF_ONETRAINER, "output_model_format": "DIFFUSERS"}),
}


TINY = FlowModel(
    "qwen_image",
    write_qwen_image_folder,
    qwen_image_pipeline,
    _pipeline_text,
    _pipeline_sample,
    other_forms=_in_other_names,
    published_shapes={
        "img_in.weight": (3072, 64),
        "txt_in.weight": (3072, 3584),
        "txt_norm.weight": (3584,),
        "time_text_embed.timestep_embedder.linear_1.weight": (3072, 256),
        "transformer_blocks.59.img_mod.1.weight": (18432, 3072),
        "transformer_blocks.59.attn.add_q_proj.weight": (3072, 3072),
        "transformer_blocks.59.attn.norm_added_k.weight": (128,),
        "transformer_blocks.59.txt_mlp.net.0.proj.weight": (12288, 3072),
        "transformer_blocks.59.img_mlp.net.2.weight": (3072, 12288),
        "norm_out.linear.weight": (6144, 3072),
        "proj_out.weight": (64, 3072),
    },
    published_weights=20_430_401_088,
    unread=("lycoris",),
    onetrainer=ONETRAINER,
)
