"""ImageReward v1.0 (Xu et al. 2023, arXiv 2304.05977): BLIP reads image and caption, a small head scores them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import BertWordPieceTokenizer
from torch import nn
from transformers.models.blip.modeling_blip import BlipEncoderLayer
from transformers.models.blip.modeling_blip_text import BlipTextLayer

from modules.memory.checkpointing import create_checkpointed_forward
from modules.rewards.blip import read_blip
from modules.rewards.clip_input import clip_input
from modules.rewards.download import files_of
from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.settings import Scorer
from modules.system.devices import move
from modules.system.errors import DarkroomError

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
        self._look, self._read = (
            create_checkpointed_forward(
                module,
                train_device=context.device,
                temp_device=context.temp_device,
                mode="block",
                block_types=(block,),
            )
            for module, block in ((self.vision, BlipEncoderLayer), (self.text, BlipTextLayer))
        )

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,). Captions are truncated to 35 tokens."""
        pixels_B3SS = clip_input(images_B3PP, side_px=int(self.vision.config.image_size))
        encoded = self._tokenizer.encode_batch(list(prompts))
        ids_BL, mask_BL = (
            move(torch.tensor([getattr(e, name) for e in encoded]), self._device) for name in ("ids", "attention_mask")
        )
        seen_BNE = self._look(pixel_values=pixels_B3SS).last_hidden_state
        read_BLD = self._read(
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


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where a file is missing or does not fit."""
    files = files_of(scorer, context)
    return ImageReward(read_blip(files["file"]), read_vocabulary(files["vocabulary"]), context)
