"""A tiny random Sana, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderDC, FlowMatchEulerDiscreteScheduler, SanaPipeline
from diffusers.models.transformers.sana_transformer import SanaTransformer2DModel
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import Gemma2Config, Gemma2Model, PreTrainedTokenizerFast

from modules.families.protocol import ModelFamily
from modules.families.sana.model import INSTRUCTION
from tests.builders.flow_models import FlowModel, OneTrainerConfig
from tests.builders.models import write_folder
from tests.builders.pipelines import latents_and_image

SCHEDULER = {
    "_class_name": "DPMSolverMultistepScheduler",
    "num_train_timesteps": 1000,
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 3.0,
}
_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
_ALPHABET = [chr(code) for code in range(33, 127)]


def tiny_transformer(**options: Any) -> SanaTransformer2DModel:
    """A transformer of two blocks, as Sana's without options; Sana 1.5 has `qk_norm`."""
    return SanaTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=24,
        **options,
    )


def tiny_gemma() -> Gemma2Model:
    """A decoder with two layers, which share their keys and values among two heads."""
    return Gemma2Model(
        Gemma2Config(
            vocab_size=400,
            hidden_size=24,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=12,
            query_pre_attn_scalar=12,
            max_position_embeddings=2048,
        )
    )


def tiny_deep_vae() -> AutoencoderDC:
    """An autoencoder of factor 32 with both kinds of blocks; heads of two channels are always linear."""
    channels, kinds = (4, 4, 8, 8, 16, 32), ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
    return AutoencoderDC(
        attention_head_dim=2,
        encoder_block_types=kinds,
        decoder_block_types=kinds,
        encoder_block_out_channels=channels,
        decoder_block_out_channels=channels,
        encoder_layers_per_block=(1,) * 6,
        decoder_layers_per_block=(1,) * 6,
        encoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)),
        decoder_qkv_multiscales=((), (), (), (5,), (5,), (5,)),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        scaling_factor=0.41407,
    )


def write_gemma_tokenizer(folder: Path) -> None:
    """Write a tokenizer as Gemma's: blanks belong to the word behind them, and a start token is put first."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("▁?[^▁]+|▁"), "isolated")
    tokenizer.decoder = decoders.Replace("▁", " ")
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=_SPECIAL, initial_alphabet=["▁", "\n", *_ALPHABET], show_progress=False
    )
    tokenizer.train_from_iterator([INSTRUCTION, INSTRUCTION.lower(), " a a"], trainer)
    start = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", start)])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_sana_folder(folder: Path, **options: Any) -> Path:
    """Write the model; `options` are those of its transformer."""
    parts = {
        "transformer": lambda: tiny_transformer(**options),
        "text_encoder": tiny_gemma,
        "vae": tiny_deep_vae,
    }
    write_folder(folder, "SanaPipeline", parts, SCHEDULER, seed=0, tokenizer=["transformers", "GemmaTokenizerFast"])
    write_gemma_tokenizer(folder / "tokenizer")
    return folder


def sana_pipeline(folder: Path, family: ModelFamily) -> SanaPipeline:
    """diffusers' pipeline of a loaded model's parts, with its own autoencoder and transformers' tokenizer."""
    vae: Any = family.parts["vae"].module
    theirs = AutoencoderDC.from_config(dict(vae.config))
    theirs.load_state_dict(vae.state_dict())
    pipe = SanaPipeline(
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True),
        text_encoder=family.parts["text_encoder"].module,
        vae=theirs.eval(),
        transformer=family.parts["transformer"].module,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _instruction() -> list[str]:
    return INSTRUCTION.split("\n")


@torch.no_grad()
def pipeline_text(pipe: SanaPipeline, prompt: str, negative: str | None = None) -> Mapping[str, torch.Tensor]:
    """The states of a prompt, or of a negative one; the empty prompt is one of these."""
    states_1LD, mask_1L, negative_1LD, negative_mask_1L = pipe.encode_prompt(
        prompt, negative_prompt=negative or "", complex_human_instruction=_instruction()
    )
    if not prompt or negative is not None:
        states_1LD, mask_1L = negative_1LD, negative_mask_1L
    return {"states": states_1LD[:, : int(mask_1L.sum())]}


def _pipeline_sample(
    pipe: SanaPipeline, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return latents_and_image(pipe, noise_BCHW, guidance, prompt=prompt, factor=32, use_resolution_binning=False)


ONETRAINER = {
    "LoRA": OneTrainerConfig(
        {
            "model_type": "SANA",
            "base_model_name": "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers",
            "learning_rate": 0.0003,
            "text_encoder": {"train": False, "weight_dtype": "BFLOAT_16"},
        },
    )
}


TINY = FlowModel(
    "sana",
    write_sana_folder,
    sana_pipeline,
    pipeline_text,
    _pipeline_sample,
    published_shapes={
        "x_embedder.proj.weight": (2240, 32, 1, 1),
        "t_embedder.mlp.0.weight": (2240, 256),
        "t_block.1.weight": (13440, 2240),
        "attention_y_norm.weight": (2240,),
        "y_embedder.y_proj.fc1.weight": (2240, 2304),
        "blocks.19.scale_shift_table": (6, 2240),
        "blocks.19.attn.qkv.weight": (6720, 2240),
        "blocks.19.cross_attn.kv_linear.weight": (4480, 2240),
        "blocks.19.mlp.inverted_conv.conv.weight": (11200, 2240, 1, 1),
        "blocks.19.mlp.depth_conv.conv.weight": (11200, 1, 3, 3),
        "blocks.19.mlp.point_conv.conv.weight": (2240, 5600, 1, 1),
        "final_layer.scale_shift_table": (2, 2240),
        "final_layer.linear.weight": (32, 2240),
    },
    published_weights=1_604_462_752,
    unread=("kohya", "comfyui"),
    onetrainer=ONETRAINER,
)
