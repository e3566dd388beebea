"""A tiny random model of the toy transformer, written as a diffusers folder with a tokenizer of its own."""

from __future__ import annotations

import json
from pathlib import Path

from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.transformers.transformer_z_image import ZImageTransformer2DModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen3Config, Qwen3Model

from tests.builders.models import write_folder
from tests.builders.toy_transformer.text import END, START

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}
PAD = "<|pad|>"
CHAT_TEMPLATE = f"{START}{{{{ messages[0]['content'] }}}}{END}"


def toy_transformer() -> ZImageTransformer2DModel:
    """A transformer with one block of each kind and two of the main ones."""
    return ZImageTransformer2DModel(
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=24,
        axes_dims=[4, 6, 6],
        axes_lens=[256, 32, 32],
    )


def toy_qwen() -> Qwen3Model:
    """A decoder with three layers and a vocabulary of bytes."""
    return Qwen3Model(
        Qwen3Config(
            vocab_size=260,
            hidden_size=24,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=12,
            max_position_embeddings=128,
        )
    )


def toy_vae() -> AutoencoderKL:
    """A VAE of factor 4 with 16 channels, normalised by a shift and a factor as FLUX.1's."""
    return AutoencoderKL(
        block_out_channels=(8, 8, 16),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=16,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=32,
        scaling_factor=0.3611,
        shift_factor=0.1159,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token for each byte, in transformers' format."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, START, END])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_toy_transformer_folder(folder: Path) -> Path:
    """Write the model."""
    parts = {"transformer": toy_transformer, "text_encoder": toy_qwen, "vae": toy_vae}
    write_folder(folder, "ToyTransformerPipeline", parts, SCHEDULER, seed=0)
    write_tokenizer(folder / "tokenizer")
    return folder
