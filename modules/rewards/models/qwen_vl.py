"""The input of Qwen's vision language models (Qwen2-VL, Qwen2.5-VL): an image as patches, and a message with an image.

Their image processor in transformers needs torchvision or converts to NumPy; the patches here are the same, in torch
alone and differentiable.
"""

from __future__ import annotations

import re

import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from modules.families.parts.chat_tokens import ChatTokenizer
from modules.rewards.models.clip import CLIP_MEAN, CLIP_STD
from modules.rewards.models.pretrained import normalize, resize

_PATCH_PX, _MERGED, _FRAMES = 14, 2, 2  # an image is a video of two equal frames; 2 by 2 patches become a token
# Their chat template, for one message with an image and a text, up to where the answer begins.
_BEFORE_IMAGE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
_AFTER_IMAGE = "<|vision_end|>{text}<|im_end|>\n<|im_start|>assistant\n"
_SPECIAL_TOKEN = re.compile(r"<\|\w+\|>")


def image_patches(
    images_B3PP: torch.Tensor, *, min_pixels: int, max_pixels: int
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Return images in [0, 1] as normalized patches (B * rows * columns, 1176), and the rows and columns of an image.

    Images are resized to multiples of 28 px, with `min_pixels` to `max_pixels` pixels as far as these allow it:
    bicubic, like Pillow without its rounding. Four patches that become one token follow each other.
    """
    height_px, width_px = smart_resize(*images_B3PP.shape[-2:], min_pixels=min_pixels, max_pixels=max_pixels)
    resized_B3PP = normalize(resize(images_B3PP, (height_px, width_px)), mean=CLIP_MEAN, std=CLIP_STD)
    rows, columns = height_px // _PATCH_PX, width_px // _PATCH_PX
    parted = resized_B3PP.reshape(
        len(images_B3PP), 3, rows // _MERGED, _MERGED, _PATCH_PX, columns // _MERGED, _MERGED, _PATCH_PX
    ).permute(0, 2, 5, 3, 6, 1, 4, 7)
    frames = parted.unsqueeze(6).expand(*parted.shape[:6], _FRAMES, *parted.shape[6:])
    return frames.reshape(len(images_B3PP) * rows * columns, -1), (rows, columns)


def num_image_tokens(grid: tuple[int, int]) -> int:
    """Return the number of tokens of an image with these rows and columns of patches."""
    return grid[0] * grid[1] // _MERGED**2


def caption_text(prompt: str) -> str:
    """Return a caption without the names of special tokens: it cannot end the message, or add an image to it."""
    num_removed = 1
    while num_removed:  # what is left and right of a name may be another one
        prompt, num_removed = _SPECIAL_TOKEN.subn("", prompt)
    return prompt


def message_ids(tokenizer: ChatTokenizer, text: str, num_image: int) -> tuple[list[int], int]:
    """Return the ids of a message with an image of so many tokens and a text, and the place of the image's first token.

    Raises DarkroomError for the tokenizer of another model.
    """
    before = tokenizer.ids(_BEFORE_IMAGE)
    image = [tokenizer.id_of("<|image_pad|>")] * num_image
    return [*before, *image, *tokenizer.ids(_AFTER_IMAGE.format(text=text))], len(before)
