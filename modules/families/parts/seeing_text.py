"""The text states of a vision-language model that reads a prompt together with reference images (Qwen2.5-VL)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from modules.families.parts.chat_text import ChatReader
from modules.system.devices import tensor_on

SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
"""The tokens of an image in a prompt; of the middle one there are as many as the vision encoder makes of it."""
_PAD = "<|image_pad|>"
_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 16384 * 28 * 28}
"""The pixels of images in the published configs of the processor; more or fewer are scaled."""


@dataclass(frozen=True, eq=False)
class SeeingReader(ChatReader):
    """A frozen vision-language model with its tokenizer; it reads prompts behind images, or alone.

    `mark` is the text of an image before the prompt, with its number as "{}" where the model numbers them.
    """

    mark: str = SEEN
    processor: Any = field(default_factory=lambda: Qwen2VLImageProcessorPil(size=_SIZE))

    def encode_seen(
        self, forward: Callable[..., Any], prompts: Sequence[str], images: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the states (L, K D) of each prompt with the same images, (3, P, P) in [-1, 1], in float32 on the CPU.

        `forward` is the forward pass of the model.
        """
        if not images:
            return self.encode(forward, prompts)
        seen = self.processor(images=[_as_image(image) for image in images], return_tensors="pt")
        return [self._encode_seen(forward, prompt, seen) for prompt in prompts]

    def identity(self) -> str:
        """Return everything but the encoder's weights that affects how a prompt is encoded."""
        return f"{super().identity()}|{self.mark}|{_SIZE}"

    def _encode_seen(self, forward: Callable[..., Any], prompt: str, seen: Any) -> torch.Tensor:
        device, weight = next(self.encoder.parameters()).device, self.encoder.visual.patch_embed.proj.weight
        grids, pad = seen["image_grid_thw"], self.tokenizer.id_of(_PAD)
        num_tokens = iter((grids.prod(-1) // self.processor.merge_size**2).tolist())
        marks = "".join(self.mark.format(number) for number in range(1, len(grids) + 1))
        ids = self.ids(marks + prompt.replace(_PAD, ""))
        ids = [i for token in ids for i in [token] * (next(num_tokens) if token == pad else 1)]
        output = forward(
            input_ids=tensor_on([ids], device, torch.long),
            mm_token_type_ids=tensor_on([[int(token == pad) for token in ids]], device, torch.int),
            pixel_values=seen["pixel_values"].to(device=device, dtype=weight.dtype),
            image_grid_thw=grids.to(device),
            output_hidden_states=True,
            use_cache=False,
        )
        return torch.cat([output.hidden_states[layer][0, self.dropped :] for layer in self.layers], dim=-1)


def _as_image(image_3PP: torch.Tensor) -> Image.Image:
    pixels_PP3 = ((image_3PP.permute(1, 2, 0) + 1.0) * 127.5).round().byte()
    return Image.fromarray(pixels_PP3.numpy())
