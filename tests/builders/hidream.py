"""A tiny random HiDream I1, written as a diffusers folder with tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HiDreamImagePipeline
from diffusers.models.transformers.transformer_hidream_image import HiDreamImageTransformer2DModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Tokenizer,
)

from tests.builders.flow_models import FULL_OF_ONETRAINER, FlowModel, OneTrainerConfig
from tests.builders.models import tiny_vae, write_folder
from tests.builders.pipelines import clip_tokenizer, latents_and_image
from tests.builders.sd3 import CLIP_WIDTHS, tiny_clip
from tests.builders.t5 import tiny_t5, write_t5_tokenizer

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}

WIDTH, LLAMA_WIDTH, LLAMA_LAYERS = 32, 24, 3
TOKENS = 64
SIDE = 8
"""The side of the latents whose tokens are the most of an image that is not square."""
_START, _END = "<|begin_of_text|>", "<|eot_id|>"


def tiny_transformer() -> HiDreamImageTransformer2DModel:
    """A transformer with two double and two single blocks, which read three layers of Llama, one of them twice.

    Its velocities are about as large as those of a trained one: larger ones multiply rounding errors. The tokens of an
    image choose all experts: what they have in common, of the attention and the shift before the experts, is small.
    """
    transformer = HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=WIDTH // 2,
        num_attention_heads=2,
        caption_channels=[24, LLAMA_WIDTH],
        text_emb_dim=sum(CLIP_WIDTHS.values()),
        num_routed_experts=4,
        num_activated_experts=2,
        axes_dims_rope=(8, 4, 4),
        max_resolution=(SIDE, SIDE),
        llama_layers=[0, 1, 2, 2],
    )
    with torch.no_grad():
        transformer.final_layer.linear.weight.mul_(0.2)
        for block in (*transformer.double_stream_blocks, *transformer.single_stream_blocks):
            shift = block.block.adaLN_modulation[1]
            for rows in (shift.weight, shift.bias):
                rows[2 * WIDTH : 4 * WIDTH] *= 0.1
    return transformer


def tiny_llama() -> LlamaForCausalLM:
    """Llama with three layers, two query heads for each of keys, and the scaled positions of 3.1."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(pre_tokenizers.ByteLevel.alphabet()) + 2,
            hidden_size=LLAMA_WIDTH,
            intermediate_size=32,
            num_hidden_layers=LLAMA_LAYERS,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=1024,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def write_llama_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token for each byte, which begins every text with the start token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_START, _END])
    start = (_START, tokenizer.token_to_id(_START))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A", pair=f"{_START} $A $B", special_tokens=[start]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=_START, eos_token=_END).save_pretrained(folder)


def write_hidream_folder(folder: Path, *, has_llama: bool = True) -> Path:
    """Write the model; without `has_llama` as it is published."""
    parts = {
        "transformer": tiny_transformer,
        "text_encoder": lambda: tiny_clip("text_encoder", num_positions=248),
        "text_encoder_2": lambda: tiny_clip("text_encoder_2", num_positions=248),
        "text_encoder_3": tiny_t5,
        "text_encoder_4": tiny_llama,
        "vae": lambda: tiny_vae(
            latent_channels=16,
            scaling_factor=0.3611,
            shift_factor=0.1159,
            use_quant_conv=False,
            use_post_quant_conv=False,
        ),
    }
    index: dict[str, Any] = {"tokenizer_3": ["transformers", "T5TokenizerFast"]}
    if has_llama:
        index["tokenizer_4"] = ["transformers", "PreTrainedTokenizerFast"]
        write_llama_tokenizer(folder / "tokenizer_4")
    else:
        del parts["text_encoder_4"]
        index |= {"text_encoder_4": [None, None], "tokenizer_4": [None, None]}
    write_folder(folder, "HiDreamImagePipeline", parts, SCHEDULER, seed=0, **index)
    clip_tokenizer().save_pretrained(folder / "tokenizer")
    clip_tokenizer("!").save_pretrained(folder / "tokenizer_2")
    write_t5_tokenizer(folder / "tokenizer_3")
    return folder


def transformer_of_diffusers(denoiser: Any) -> HiDreamImageTransformer2DModel:
    """diffusers' own class with the weights of ours."""
    transformer = HiDreamImageTransformer2DModel.from_config(dict(denoiser.config))
    transformer.load_state_dict(denoiser.state_dict())
    return transformer.eval()


def hidream_pipeline(folder: Path, family: Any) -> HiDreamImagePipeline:
    """diffusers' pipeline of a loaded model's parts, with transformers' own tokenizers. The language model is
    transformers' own class, and the transformer is diffusers' while it samples.
    """
    pipe = HiDreamImagePipeline(
        transformer=family.denoiser,
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        vae=family.vae,
        text_encoder=family.modules["text_encoder"],
        tokenizer=clip_tokenizer(),
        text_encoder_2=family.modules["text_encoder_2"],
        tokenizer_2=clip_tokenizer("!"),
        text_encoder_3=family.modules["text_encoder_3"],
        tokenizer_3=T5Tokenizer.from_pretrained(folder / "tokenizer_3", local_files_only=True),
        text_encoder_4=LlamaForCausalLM.from_pretrained(folder / "text_encoder_4"),
        tokenizer_4=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer_4", local_files_only=True),
    )
    pipe.default_sample_size = SIDE  # it scales all images to as many pixels
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: HiDreamImagePipeline, prompt: str) -> Mapping[str, torch.Tensor]:
    t5, _, llama, _, pooled, _ = pipe.encode_prompt([prompt], device="cpu", do_classifier_free_guidance=False)
    first = CLIP_WIDTHS["text_encoder"]
    return {
        "text_encoder_3": t5,
        "text_encoder_4": llama.transpose(0, 1),
        "text_encoder_pooled": pooled[:, :first],
        "text_encoder_2_pooled": pooled[:, first:],
    }


def _pipeline_sample(
    pipe: HiDreamImagePipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    pipe.register_modules(transformer=transformer_of_diffusers(pipe.transformer))
    return latents_and_image(pipe, noise_BCHW, guidance, prompt=[prompt])


_FULL = "HiDream-ai/HiDream-I1-Full"
_FROZEN = {
    name: {"train": False, "weight_dtype": dtype, "dropout_probability": 0.0, "include": True}
    for name, dtype in {
        "text_encoder": "BFLOAT_16",
        "text_encoder_2": "BFLOAT_16",
        "text_encoder_3": "FLOAT_8",
        "text_encoder_4": "FLOAT_8",
    }.items()
}
_KEYS = {"model_type": "HI_DREAM_FULL", "base_model_name": _FULL, **_FROZEN, "timestep_shift": 3.0}
_VALUES = {
    "model.family": {"name": "hidream", "text_tokens": 128},
    "parts.transformer.dtype": "float8",
    "parts.text_encoder_4.dtype": "float8",
    "training.noise.shift": 3.0,
    "data.caption_dropout": 0.0,
}
ONETRAINER = {
    "lora": OneTrainerConfig(_KEYS, _VALUES),
    "lora of attention": OneTrainerConfig(
        {**_KEYS, "layer_filter": "attn1", "layer_filter_preset": "custom", "peft_type": "LORA"},
        {**_VALUES, "adapter.layers": "custom"},
    ),
    "full": OneTrainerConfig({**_KEYS, **FULL_OF_ONETRAINER}, {**_VALUES, "parts.transformer.dtype": "bfloat16"}),
}


TINY = FlowModel(
    "hidream",
    write_hidream_folder,
    hidream_pipeline,
    _pipeline_text,
    _pipeline_sample,
    published_shapes={
        "t_embedder.timestep_embedder.linear_1.weight": (2560, 256),
        "p_embedder.pooled_embedder.linear_1.weight": (2560, 2048),
        "x_embedder.proj.weight": (2560, 64),
        "caption_projection.48.linear.weight": (2560, 4096),
        "double_stream_blocks.0.block.adaLN_modulation.1.weight": (30720, 2560),
        "double_stream_blocks.15.block.attn1.to_q_t.weight": (2560, 2560),
        "double_stream_blocks.15.block.ff_i.gate.weight": (4, 2560),
        "double_stream_blocks.15.block.ff_t.w1.weight": (6912, 2560),
        "single_stream_blocks.31.block.adaLN_modulation.1.bias": (15360,),
        "single_stream_blocks.31.block.attn1.q_rms_norm.weight": (2560,),
        "single_stream_blocks.31.block.ff_i.experts.3.w2.weight": (2560, 6912),
        "single_stream_blocks.31.block.ff_i.shared_experts.w1.weight": (3584, 2560),
        "final_layer.adaLN_modulation.1.weight": (5120, 2560),
        "final_layer.linear.weight": (64, 2560),
    },
    published_weights=17_105_733_184,
    unread=("kohya", "comfyui"),
    settings={"text_tokens": TOKENS},
    attends_to_padding=True,
    onetrainer=ONETRAINER,
)
