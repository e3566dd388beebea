"""A tiny random Krea 2, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, Krea2Pipeline
from diffusers.models.transformers.transformer_krea2 import Krea2Transformer2DModel
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLModel

from modules.formats.peft_settings import PEFT_SETTINGS
from modules.formats.safetensors_io import read_safetensors
from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.models import write_folder
from tests.builders.pipelines import latents_and_image
from tests.builders.qwen_vae import tiny_qwen_vae
from tests.builders.z_image import write_tokenizer

SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "base_image_seq_len": 256,
    "max_image_seq_len": 6400,
    "base_shift": 0.5,
    "max_shift": 1.15,
}
LAYERS = (1, 3)


def tiny_transformer() -> Krea2Transformer2DModel:
    """A transformer with two blocks and a block of each kind of text fusion; two heads of queries share their keys.

    Its tables and norms are random, too. Its time has little effect, as in a trained model: the embedding multiplies by
    1000 the last bit in which our noise levels differ from diffusers'.
    """
    transformer = Krea2Transformer2DModel(
        in_channels=64,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        timestep_embed_dim=16,
        text_hidden_dim=24,
        num_text_layers=len(LAYERS),
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=32,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 2, 2),
    )
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if name.endswith("scale_shift_table") or ".norm" in name:
                parameter.normal_(std=0.1)
        transformer.time_embed.linear_1.weight.mul_(0.05)
    return transformer


def tiny_qwen_vl() -> Qwen3VLModel:
    """A whole vision-language model: a decoder with four layers, a vocabulary of bytes, and a vision tower."""
    text = {
        "vocab_size": 260,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "max_position_embeddings": 1024,
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
        "out_hidden_size": 24,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
        "patch_size": 4,
    }
    return Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision))


def write_krea2_folder(folder: Path) -> Path:
    """Write the model."""
    parts = {"transformer": tiny_transformer, "text_encoder": tiny_qwen_vl, "vae": tiny_qwen_vae}
    tokenizer = ["transformers", "PreTrainedTokenizerFast"]
    index = {"tokenizer": tokenizer, "text_encoder_select_layers": list(LAYERS), "is_distilled": False}
    write_folder(folder, "Krea2Pipeline", parts, SCHEDULER, seed=0, **index)
    write_tokenizer(folder / "tokenizer")
    return folder


def krea2_pipeline(folder: Path, family: Any) -> Krea2Pipeline:
    """diffusers' pipeline of a loaded model's parts, with transformers' own whole Qwen3-VL and tokenizer.

    The numbers of the template's tokens are those of the tokenizer of bytes.
    """
    vae = family.modules["vae"]
    theirs = AutoencoderKLQwenImage.from_config(dict(vae.config))
    theirs.load_state_dict(vae.state_dict())
    pipe = Krea2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=theirs.eval(),
        text_encoder=Qwen3VLModel.from_pretrained(folder / "text_encoder", local_files_only=True).eval(),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True),
        transformer=family.denoiser,
        text_encoder_select_layers=LAYERS,
        is_distilled=json.loads((folder / "model_index.json").read_text())["is_distilled"],
    )
    pipe.prompt_template_encode_start_idx = len(pipe.tokenizer(pipe.prompt_template_encode_prefix).input_ids)
    pipe.prompt_template_encode_num_suffix_tokens = len(pipe.tokenizer(pipe.prompt_template_encode_suffix).input_ids)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@torch.no_grad()
def _pipeline_text(pipe: Krea2Pipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    states_1LND, mask_1L = pipe.encode_prompt(prompt, device=torch.device("cpu"))
    return {"states": states_1LND[:, mask_1L[0]].flatten(2)}


def _pipeline_sample(
    pipe: Krea2Pipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    height, width = (8 * side for side in noise_BCHW.shape[-2:])

    packed = pipe._pack_latents(noise_BCHW, *noise_BCHW.shape)
    # The pipeline's scale is what guidance adds: 0 is none.
    latents, image = latents_and_image(pipe, noise_BCHW, guidance - 1.0, prompt=prompt, latents=packed)
    return pipe._unpack_latents(latents, height, width)[:, :, 0], image


def _in_native_peft_names(lora: Path, folder: Path) -> list[Path]:
    """Write a LoRA as ai-toolkit and SimpleTuner do: diffusers' names behind `diffusion_model.`, with alphas."""
    tensors, metadata = read_safetensors(lora)
    named = {name.replace("transformer.", "diffusion_model.", 1): tensor for name, tensor in tensors.items()}
    alphas = {n.replace("lora_A.weight", "alpha"): torch.tensor(2.0) for n in named if n.endswith("lora_A.weight")}
    kept = {name: text for name, text in metadata.items() if name != PEFT_SETTINGS}
    save_file(named | alphas, folder / "mixed.safetensors", kept)
    return [folder / "mixed.safetensors"]


KREA2_OF_ONETRAINER = {
    "model_type": "KREA_2",
    "base_model_name": "krea/Krea-2-Raw",
    "learning_rate": 0.0003,
    "layer_filter": "attn,ff",
}
ONETRAINER = {
    "24 GB": OneTrainerConfig({**KREA2_OF_ONETRAINER, "transformer": {"train": True, "weight_dtype": "INT_W8A8"}}),
    "16 GB": OneTrainerConfig(
        {**KREA2_OF_ONETRAINER, "transformer": {"train": True, "weight_dtype": "FLOAT_8", "offload_fraction": 0.3}}
    ),
    "12 GB": OneTrainerConfig(
        {**KREA2_OF_ONETRAINER, "transformer": {"train": True, "weight_dtype": "NFLOAT_4"}, "batch_size": 1}
    ),
    "full": OneTrainerConfig(
        {**KREA2_OF_ONETRAINER, **FULL_OF_ONETRAINER, "output_model_format": "ORIGINAL_TRANSFORMER"},
        closest=frozenset({"output.model_format"}),
    ),
}


TINY = FlowModel(
    "krea2",
    write_krea2_folder,
    krea2_pipeline,
    _pipeline_text,
    _pipeline_sample,
    other_forms=_in_native_peft_names,
    published_shapes={
        "first.weight": (6144, 64),
        "tmlp.0.weight": (6144, 256),
        "tproj.1.weight": (36864, 6144),
        "txtmlp.0.scale": (2560,),
        "txtmlp.1.weight": (6144, 2560),
        "txtfusion.projector.weight": (1, 12),
        "txtfusion.refiner_blocks.1.mlp.down.weight": (2560, 6912),
        "blocks.27.attn.wq.weight": (6144, 6144),
        "blocks.27.attn.wk.weight": (1536, 6144),
        "blocks.27.attn.qknorm.knorm.scale": (128,),
        "blocks.27.attn.gate.weight": (6144, 6144),
        "blocks.27.mlp.down.weight": (6144, 16384),
        "blocks.27.mod.lin": (36864,),
        "last.modulation.lin": (2, 6144),
        "last.linear.weight": (64, 6144),
    },
    published_weights=12_820_073_036,
    unread=("kohya", "comfyui", "mixed"),
    oft={"rotates": "inputs"},  # the projector of the text layers has one output
    onetrainer=ONETRAINER,
)
