"""The parts of the flow demo model, built with diffusers' and transformers' classes, and their pipeline.

It is a Z-Image in everything but size: a transformer over the tokens of text and image that predicts a velocity, a
Qwen3 whose states of the last layer but one it reads, and an AutoencoderKL with 16 latent channels at an eighth of the
image's side. Its tokenizer has a token for each word of the demo's captions; any other word is spelled out in bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from demo.make.architecture import build_demo_vae, seeded
from demo.make.shapes import COLOURS, SHAPES

LATENT_CHANNELS = 16
NUM_TOKENS = 1024
_HIDDEN_SIZE = 64
_NUM_ENCODER_LAYERS = 3
_WIDTH = 96
_NUM_HEADS = 4
_PATCH_VALUES = 4 * LATENT_CHANNELS  # of 2 x 2 latents
_AXES = (8, 8, 8)  # sum: the width of a head
_GATE_START = 0.3
_RESIDUAL_START = 0.1
_PAD, _START, _END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_WORDS = ("a", "an", "on", "of", "with", "picture", "drawing", "ground", *COLOURS, *SHAPES)
# Qwen3's for messages of text: without thinking, the beginning of the answer has an empty thought.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def build_flow_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer in which each word of the captions is one token, with or without a space before it.

    A merge joins a word's beginning with its next character. Those of words after a space come first, so that no
    beginning of another word is found inside them.
    """
    vocabulary = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in (*(f"Ġ{word}" for word in _WORDS), *_WORDS, "user", "assistant"):
        for end in range(1, len(word)):
            if word[: end + 1] not in vocabulary:
                merges.append((word[:end], word[end]))
                vocabulary[word[: end + 1]] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_PAD, _START, _END])
    return tokenizer


def build_flow_text_encoder(*, seed: int) -> Qwen3Model:
    """Return a Qwen3 of three layers, float32, of which the last is never read; 0.25 MB in fp16."""
    config = Qwen3Config(
        vocab_size=build_flow_tokenizer().get_vocab_size(),
        hidden_size=_HIDDEN_SIZE,
        intermediate_size=2 * _HIDDEN_SIZE,
        num_hidden_layers=_NUM_ENCODER_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=NUM_TOKENS,
        initializer_range=0.08,
    )
    with seeded(seed):
        encoder = Qwen3Model(config)
        nn.init.normal_(encoder.embed_tokens.weight)
    return encoder


def build_flow_vae(*, seed: int) -> AutoencoderKL:
    """Return an autoencoder with 16 latent channels and without convolutions around them, as FLUX.1's."""
    return build_demo_vae(seed=seed, latent_channels=LATENT_CHANNELS, has_quant_convs=False)


def build_flow_transformer(*, seed: int) -> ZImageTransformer2DModel:
    """Return a transformer for 8 x 8 latents, float32, that initially predicts most of its input as the velocity."""
    with seeded(seed):
        transformer = ZImageTransformer2DModel(
            dim=_WIDTH,
            n_layers=4,
            n_refiner_layers=1,
            n_heads=_NUM_HEADS,
            n_kv_heads=_NUM_HEADS,
            cap_feat_dim=_HIDDEN_SIZE,
            axes_dims=list(_AXES),
            axes_lens=[NUM_TOKENS, 64, 64],
        )
        _start_as_noise(transformer)
    return transformer


def build_flow_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Return diffusers' flow scheduler without a shift: images this small need none."""
    return FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=1.0)


def write_flow_tokenizer(folder: Path) -> None:
    """Write the tokenizer, with the template of a chat, as transformers has it."""
    folder.mkdir(parents=True)
    build_flow_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": _PAD, "chat_template": _CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def assemble_flow_pipeline(
    text_encoder: Qwen3Model, vae: AutoencoderKL, transformer: ZImageTransformer2DModel
) -> ZImagePipeline:
    """Return diffusers' pipeline of the parts, in evaluation mode, without a progress bar."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_flow_tokenizer(), pad_token=_PAD, chat_template=_CHAT_TEMPLATE
    )
    scheduler = build_flow_scheduler()
    pipeline = ZImagePipeline(scheduler, vae.eval(), text_encoder.eval(), tokenizer, transformer.eval())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load_flow_pipeline(folder: Path) -> ZImagePipeline:
    """Load a saved flow demo model in float32 with diffusers. Raises OSError if the folder contains no pipeline."""
    pipeline = ZImagePipeline.from_pretrained(
        folder, use_safetensors=True, local_files_only=True, trust_remote_code=False
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(torch.float32)


def _start_as_noise(transformer: ZImageTransformer2DModel) -> None:
    """Set weights, in place, so that the transformer passes its input through to its output, negated.

    At the noisiest levels the input is the right answer to within a few percent. The first layer is an orthogonal map
    and the last its inverse, up to the norm between them; the gates of the blocks start slightly open and hardly depend
    on the time.
    """
    embedder = transformer.all_x_embedder["2-1"]
    final = transformer.all_final_layer["2-1"].linear
    basis, _ = torch.linalg.qr(torch.randn(_WIDTH, _PATCH_VALUES))
    gain = (_WIDTH / _PATCH_VALUES) ** 0.5
    with torch.no_grad():
        embedder.weight.copy_(basis * gain)
        embedder.bias.zero_()
        final.weight.copy_(-basis.T / gain)
        final.bias.zero_()
        for name, weight in transformer.named_parameters():
            if "adaLN_modulation" in name:
                weight.mul_(_RESIDUAL_START if weight.ndim > 1 else 0.0)
        for block in (*transformer.layers, *transformer.noise_refiner):
            # Scale and gate of the attention, scale and gate of the feed-forward layers.
            block.adaLN_modulation[0].bias[_WIDTH : 2 * _WIDTH] = _GATE_START
            block.adaLN_modulation[0].bias[3 * _WIDTH :] = _GATE_START
        nn.init.normal_(transformer.x_pad_token, std=0.02)
        nn.init.normal_(transformer.cap_pad_token, std=0.02)
