"""UnifiedReward (Wang et al. 2025, arXiv 2503.05236): Qwen2.5-VL compares image and caption in words, then scores."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLForConditionalGeneration

from modules.families.parts.chat_tokens import ChatTokenizer, load_chat_tokenizer
from modules.rewards.models.pretrained import read_pretrained
from modules.rewards.models.qwen_vl import caption_text, image_patches, message_ids, num_image_tokens
from modules.rewards.protocol import Reward, RewardContext, files_of
from modules.rewards.settings import Scorer
from modules.system.devices import move

# The authors' prompt for the score of one image.
_QUESTION = (
    "You are given a text caption and a generated image based on that caption. Your task is to evaluate this image "
    "based on two key criteria:\n"
    "1. Alignment with the Caption: Assess how well this image aligns with the provided caption. Consider the accuracy "
    "of depicted objects, their relationships, and attributes as described in the caption.\n"
    "2. Overall Image Quality: Examine the visual quality of this image, including clarity, detail preservation, color "
    "accuracy, and overall aesthetic appeal.\n"
    "Extract key elements from the provided text caption, evaluate their presence in the generated image using the "
    "format: 'element (type): value' (where value=0 means not generated, and value=1 means generated), and assign a "
    "score from 1 to 5 after 'Final Score:'.\n"
    "Your task is provided as follows:\n"
    "Text Caption: [{caption}]"
)
_SCORE = re.compile(r"Final Score:\W*(\d+(?:\.\d+)?)", re.IGNORECASE)
_MIN_PIXELS, _MAX_PIXELS = 4 * 28 * 28, 16384 * 28 * 28
_MAX_NEW_TOKENS = 512


def final_score(answer: str) -> float:
    """Return the score from 1 to 5 that an answer ends with; NaN if it has none."""
    scores = _SCORE.findall(answer)
    score = float(scores[-1]) if scores else math.nan
    return score if 1 <= score <= 5 else math.nan


class _Check(StoppingCriteria):  # type: ignore[misc]  # transformers has no types
    """Lets a run be stopped after each token."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self._check()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class UnifiedReward:
    """Scores how well an image matches its caption and is made, 1 to 5; NaN if the model's answer has no score."""

    is_differentiable = False

    def __init__(self, model: Any, tokenizer: ChatTokenizer, context: RewardContext) -> None:
        """Wrap and freeze the model, on the training device. It always writes its most probable answer."""
        self.model = model.eval().requires_grad_(False)
        context.place(self.model)
        self._tokenizer, self._device = tokenizer, context.device
        self._stops = StoppingCriteriaList([_Check(context.check)])
        published = model.generation_config
        self._image_id, self._padding = (tokenizer.id_of(token) for token in ("<|image_pad|>", "<|endoftext|>"))
        self._writing = GenerationConfig(
            do_sample=False,
            max_new_tokens=_MAX_NEW_TOKENS,
            repetition_penalty=published.repetition_penalty,
            eos_token_id=[tokenizer.id_of("<|im_end|>"), self._padding],
            pad_token_id=self._padding,
        )

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,)."""
        return images_B3PP.new_tensor([final_score(answer) for answer in self.answers(images_B3PP, prompts)])

    @torch.no_grad()
    def answers(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> list[str]:
        """Return the model's written answer for each image."""
        patches, grid = image_patches(images_B3PP, min_pixels=_MIN_PIXELS, max_pixels=_MAX_PIXELS)
        questions = [_QUESTION.format(caption=caption_text(prompt)) for prompt in prompts]
        messages = [message_ids(self._tokenizer, text, num_image_tokens(grid))[0] for text in questions]
        length = max(map(len, messages))
        ids_BL = torch.tensor([[*[self._padding] * (length - len(ids)), *ids] for ids in messages])
        is_padding_BL = torch.tensor([[n < length - len(ids) for n in range(length)] for ids in messages])
        inputs = {
            "input_ids": ids_BL,
            "attention_mask": (~is_padding_BL).long(),
            "mm_token_type_ids": (ids_BL == self._image_id).int(),
            "image_grid_thw": torch.tensor([(1, *grid)] * len(messages)),
        }
        written_BL = self.model.generate(
            **{name: move(tensor, self._device) for name, tensor in inputs.items()},
            pixel_values=patches,
            generation_config=self._writing,
            stopping_criteria=self._stops,
        )
        return [
            self._tokenizer.tokenizer.decode(ids, skip_special_tokens=True) for ids in written_BL[:, length:].tolist()
        ]


def make_unified_reward(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward, loaded. Raises DarkroomError where its folder is missing, or is not a Qwen2.5-VL."""
    folder = files_of(scorer, context)["file"]
    model = read_pretrained(Qwen2_5_VLForConditionalGeneration, folder, "Qwen2.5-VL model", keeps_dtype=True)
    return UnifiedReward(model, load_chat_tokenizer(folder), context)
