"""ImageReward's published file at toy size: tiny random BLIP encoders and a head under the authors' names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers.models.blip.configuration_blip import BlipTextConfig, BlipVisionConfig
from transformers.models.blip.modeling_blip import BlipVisionModel
from transformers.models.blip.modeling_blip_text import BlipTextModel

IMAGE_PX = 32
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "on", "red", "disc", "cat", "mat", ",", "far", "##s"]
VISION_WIDTH, TEXT_WIDTH = 20, 12


def tiny_blip(*, seed: int = 4) -> tuple[BlipVisionModel, BlipTextModel, nn.Sequential]:
    """A BLIP image encoder and text encoder of two layers each, and ImageReward's head."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=VISION_WIDTH,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=1,
                image_size=IMAGE_PX,
                patch_size=16,
                layer_norm_eps=1e-6,
            )
        )
        text = BlipTextModel(
            BlipTextConfig(
                vocab_size=len(WORDS),
                hidden_size=TEXT_WIDTH,
                encoder_hidden_size=VISION_WIDTH,
                intermediate_size=24,
                num_hidden_layers=2,
                num_attention_heads=1,
                max_position_embeddings=40,
                bos_token_id=2,
                sep_token_id=3,
            ),
            add_pooling_layer=False,
        )
        head = nn.Sequential(
            nn.Linear(TEXT_WIDTH, 1024),
            nn.Dropout(0.2),
            nn.Linear(1024, 128),
            nn.Dropout(0.2),
            nn.Linear(128, 64),
            nn.Dropout(0.1),
            nn.Linear(64, 16),
            nn.Linear(16, 1),
        )
        with torch.no_grad():
            for parameter in (*vision.parameters(), *text.parameters()):
                parameter.normal_(std=0.4)  # new weights hardly distinguish images
    return vision.eval(), text.eval(), head.eval()


def image_reward_weights() -> dict[str, torch.Tensor]:
    """The weights under the names of the published file."""
    vision, text, head = tiny_blip()
    names = {
        "embeddings.class_embedding": "cls_token",
        "embeddings.position_embedding": "pos_embed",
        "embeddings.patch_embedding": "patch_embed.proj",
        "encoder.layers": "blocks",
        "self_attn.qkv": "attn.qkv",
        "self_attn.projection": "attn.proj",
        "layer_norm": "norm",
        "post_layernorm": "norm",
    }
    found = {}
    for name, tensor in vision.state_dict().items():
        for theirs, authors in names.items():
            name = name.replace(theirs, authors)
        found[f"blip.visual_encoder.{name}"] = tensor
    found |= {f"blip.text_encoder.{name}": tensor for name, tensor in text.state_dict().items()}
    found["blip.text_encoder.embeddings.position_ids"] = torch.arange(40)[None]
    found["blip.vision_proj.weight"] = torch.zeros(4, VISION_WIDTH)  # of its pretraining, unused
    return found | {f"mlp.layers.{name}": tensor for name, tensor in head.state_dict().items()}


def write_image_reward(folder: Path) -> dict[str, str]:
    """Write ImageReward.pt and vocab.txt, and return their paths by setting."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(image_reward_weights(), folder / "ImageReward.pt")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return {"file": str(folder / "ImageReward.pt"), "vocabulary": str(folder / "vocab.txt")}
