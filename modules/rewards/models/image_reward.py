"""ImageReward v1.0 (Xu et al. 2023, arXiv 2304.05977): BLIP reads image and caption, a small head scores them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import BertWordPieceTokenizer
from torch import nn
from transformers.models.blip.configuration_blip import BlipTextConfig, BlipVisionConfig
from transformers.models.blip.modeling_blip import BlipEncoderLayer, BlipVisionModel
from transformers.models.blip.modeling_blip_text import BlipTextLayer, BlipTextModel

from modules.formats.lazy_tensors import LazyTensor
from modules.formats.stored_tensors import read_stored
from modules.rewards.models.clip import clip_input
from modules.rewards.models.pretrained import stored_linear
from modules.rewards.protocol import Reward, RewardContext, files_of
from modules.rewards.settings import Scorer
from modules.system.devices import move
from modules.system.errors import DarkroomError

# Reads the BLIP model of ImageReward's published file as transformers' BLIP: image encoder, text encoder and head.
#
# The authors' package cannot be used: it imports torchvision, and pins versions of timm and fairscale that do not work
# with current torch. The layers of transformers' BLIP are the same. The file has no config; sizes follow from shapes.

_VISION, _TEXT, _HEAD = "blip.visual_encoder.", "blip.text_encoder.", "mlp.layers."
# (the authors' name, transformers' name) of the image encoder; the text encoder's names are the same.
_PLAIN = {
    "cls_token": "embeddings.class_embedding",
    "pos_embed": "embeddings.position_embedding",
    "patch_embed.proj.weight": "embeddings.patch_embedding.weight",
    "patch_embed.proj.bias": "embeddings.patch_embedding.bias",
    "norm.weight": "post_layernorm.weight",
    "norm.bias": "post_layernorm.bias",
}
_IN_BLOCK = {
    "attn.qkv": "self_attn.qkv",
    "attn.proj": "self_attn.projection",
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_HEAD_LAYERS = (0, 2, 4, 6, 7)  # between them was dropout, which is inactive at inference
_HEAD_WIDTH = 64  # of attention


def read_blip(file: Path) -> tuple[Any, Any, nn.Sequential]:
    """Return the image encoder, the text encoder and the head of ImageReward's file, float32.

    Only weights are read, never code. Raises DarkroomError where the file does not contain them.
    """
    stored, _ = read_stored(file)
    try:
        vision = _load_weights(BlipVisionModel(_vision_config(stored)), dict(_vision_weights(stored)))
        text = _load_weights(
            BlipTextModel(_text_config(stored), add_pooling_layer=False), _weights_under(_TEXT, stored)
        )
        head = nn.Sequential(*(stored_linear(stored, f"{_HEAD}{index}") for index in _HEAD_LAYERS))
    except (KeyError, RuntimeError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error).splitlines()[-1].strip()
        raise DarkroomError(
            f"{file.name} is not ImageReward's model: {reason}.",
            advice="Choose ImageReward.pt of the repository THUDM/ImageReward.",
        ) from error
    return vision, text, head


def _load_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> Any:
    """Load weights into a model; other tensors are left out. Raises RuntimeError where one is missing or differs."""
    names = model.state_dict().keys()
    model.load_state_dict({name: tensor for name, tensor in weights.items() if name in names})
    return model


def _weights_under(prefix: str, stored: Mapping[str, LazyTensor]) -> dict[str, torch.Tensor]:
    matches = {name: lazy for name, lazy in stored.items() if name.startswith(prefix) and "position_ids" not in name}
    return {name.removeprefix(prefix): lazy.make().float() for name, lazy in matches.items()}


def _vision_weights(stored: Mapping[str, LazyTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in _weights_under(_VISION, stored).items():
        block, _, rest = name.removeprefix("blocks.").partition(".")
        layer, _, parameter = rest.rpartition(".")
        if name in _PLAIN:
            yield _PLAIN[name], tensor
        elif name.startswith("blocks.") and layer in _IN_BLOCK:
            yield f"encoder.layers.{block}.{_IN_BLOCK[layer]}.{parameter}", tensor


def _vision_config(stored: Mapping[str, LazyTensor]) -> BlipVisionConfig:
    width, _, _, patch_px = stored[f"{_VISION}patch_embed.proj.weight"].shape
    num_patches = stored[f"{_VISION}pos_embed"].shape[1] - 1
    return BlipVisionConfig(
        hidden_size=width,
        intermediate_size=stored[f"{_VISION}blocks.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=_num_layers(stored, f"{_VISION}blocks."),
        num_attention_heads=max(width // _HEAD_WIDTH, 1),
        image_size=round(num_patches**0.5) * patch_px,
        patch_size=patch_px,
        hidden_act="gelu",
        layer_norm_eps=1e-6,  # the authors', not transformers' default
    )


def _text_config(stored: Mapping[str, LazyTensor]) -> BlipTextConfig:
    words, width = stored[f"{_TEXT}embeddings.word_embeddings.weight"].shape
    return BlipTextConfig(
        vocab_size=words,
        hidden_size=width,
        encoder_hidden_size=stored[f"{_TEXT}encoder.layer.0.crossattention.self.key.weight"].shape[1],
        intermediate_size=stored[f"{_TEXT}encoder.layer.0.intermediate.dense.weight"].shape[0],
        num_hidden_layers=_num_layers(stored, f"{_TEXT}encoder.layer."),
        num_attention_heads=max(width // _HEAD_WIDTH, 1),
        max_position_embeddings=stored[f"{_TEXT}embeddings.position_embeddings.weight"].shape[0],
        bos_token_id=words - 1,
        sep_token_id=words - 1,  # only used for writing text
    )


def _num_layers(stored: Mapping[str, LazyTensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in stored if name.startswith(prefix)})


_NUM_TOKENS = 35
_MEAN, _STD = 0.16717362830052426, 1.0333394966054072  # of the head's output on the authors' data


class ImageReward:
    """Scores how much people would like an image for its caption: mean 0 and standard deviation 1 over their images."""

    is_differentiable = True

    def __init__(
        self,
        encoders: tuple[Any, Any, nn.Sequential],
        tokenizer: BertWordPieceTokenizer,
        context: RewardContext,
    ) -> None:
        """Wrap and freeze the image encoder, the text encoder and the head, in float32 on the training device.

        Both encoders are checkpointed block by block.
        """
        for module in encoders:
            module.float().eval().requires_grad_(False)
            context.place(module)
        self.vision, self.text, self.head = encoders
        self._tokenizer = tokenizer
        self._device = context.device
        self._encode_image = context.with_checkpointing(self.vision, BlipEncoderLayer)
        self._encode_text = context.with_checkpointing(self.text, BlipTextLayer)

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,). Captions are truncated to 35 tokens."""
        pixels_B3SS = clip_input(images_B3PP, side_px=int(self.vision.config.image_size))
        encoded = self._tokenizer.encode_batch(list(prompts))
        ids_BL, mask_BL = (
            move(torch.tensor([getattr(e, name) for e in encoded]), self._device) for name in ("ids", "attention_mask")
        )
        seen_BNE = self._encode_image(pixel_values=pixels_B3SS).last_hidden_state
        read_BLD = self._encode_text(
            input_ids=ids_BL, attention_mask=mask_BL, encoder_hidden_states=seen_BNE, is_decoder=False
        ).last_hidden_state
        score_B1: torch.Tensor = self.head(read_BLD[:, 0])
        return (score_B1.squeeze(1) - _MEAN) / _STD


def read_vocabulary(file: Path) -> BertWordPieceTokenizer:
    """Return BERT's tokenizer (uncased) of a vocab.txt, with captions padded or truncated to 35 tokens.

    Raises DarkroomError where the file is not a vocabulary.
    """
    try:
        tokenizer = BertWordPieceTokenizer(str(file), lowercase=True)
        tokenizer.enable_padding(length=_NUM_TOKENS)
        tokenizer.enable_truncation(_NUM_TOKENS)
        tokenizer.encode("a")
    except Exception as error:  # the tokenizers library raises no other class
        raise DarkroomError(
            f"{file.name} is not the vocabulary of BERT: {str(error).splitlines()[0]}",
            advice="Choose vocab.txt of the repository google-bert/bert-base-uncased.",
        ) from error
    return tokenizer


def make_image_reward(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where a file is missing or does not fit."""
    files = files_of(scorer, context)
    return ImageReward(read_blip(files["file"]), read_vocabulary(files["vocabulary"]), context)
