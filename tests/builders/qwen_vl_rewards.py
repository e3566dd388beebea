"""The published files of rewards on Qwen's vision language models at toy size, with a tokenizer of their own."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from modules.rewards.models import hpsv3, unified_reward

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
ANSWERS = tuple(f"Final Score: {1 + number / 50:.2f}\n" for number in range(200))
_ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
_TEXT = {
    "hidden_size": 128,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_parameters": _ROPE,
    "max_position_embeddings": 8192,
    "bos_token_id": None,
    "eos_token_id": None,
}


def tiny_tokenizer() -> Tokenizer:
    """A tokenizer with a token for each byte and each line of the prompts, so that messages are short."""
    tokenizer = Tokenizer(models.BPE({c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    prompts = hpsv3._INSTRUCTION.replace("<|Reward|>", "\n") + unified_reward._QUESTION
    lines = {line for line in re.split(r"\n|\{\w+\}", prompts) if len(line) > 8}
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*sorted(lines), *ANSWERS)])
    return tokenizer


def tiny_qwen2_vl(num_words: int, *, seed: int = 6) -> tuple[Qwen2VLForConditionalGeneration, nn.Sequential]:
    """A Qwen2-VL of two layers each, and HPSv3's head."""
    vision = {"depth": 2, "embed_dim": 80, "hidden_size": 128, "num_heads": 1, "mlp_ratio": 1}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = Qwen2VLConfig(text_config={**_TEXT, "vocab_size": num_words}, vision_config=vision)
        model = Qwen2VLForConditionalGeneration(config)
        head = nn.Sequential(
            nn.Linear(128, 1024), nn.ReLU(), nn.Dropout(0.05), nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 2)
        )
        with torch.no_grad():
            for parameter in (*model.parameters(), *head.parameters()):
                parameter.normal_(std=0.1)  # new weights hardly distinguish images
    return model.eval(), head.eval()


def hpsv3_weights(*, is_new: bool = False) -> dict[str, torch.Tensor]:
    """The weights under the names of the published file, or, if `is_new`, of today's transformers."""
    model, head = tiny_qwen2_vl(tiny_tokenizer().get_vocab_size() + 1)
    found = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if not is_new:
        found = {re.sub(r"^model\.(visual\.)|language_model\.", r"\1", name): tensor for name, tensor in found.items()}
    return found | {f"rm_head.{name}": tensor for name, tensor in head.state_dict().items()}


def write_hpsv3(folder: Path) -> dict[str, str]:
    """Write HPSv3.safetensors and tokenizer.json, and return their paths by setting."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(hpsv3_weights(), folder / "HPSv3.safetensors")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return {"file": str(folder / "HPSv3.safetensors"), "vocabulary": str(folder / "tokenizer.json")}


def write_unified_reward(folder: Path, *, seed: int = 0) -> Path:
    """Write a Qwen2.5-VL that answers with scores only, in two files of weights, and its tokenizer."""
    tokenizer = tiny_tokenizer()
    ids = {token: tokenizer.token_to_id(token) for token in (*SPECIAL, *ANSWERS)}
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 1,
        "out_hidden_size": 128,
        "fullatt_block_indexes": [0],
    }
    config = Qwen2_5_VLConfig(
        text_config={**_TEXT, "vocab_size": tokenizer.get_vocab_size()},
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
            answers = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.bool)
            answers[[ids[token] for token in ANSWERS]] = True
            model.lm_head.weight[~answers] = 0.0
    model.generation_config.repetition_penalty = 1.05
    folder.mkdir(parents=True)
    model.save_pretrained(folder, max_shard_size="300KB")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
