"""A reward that a server computes: images leave as PNG files, scores come back."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from modules.rewards.address import parse_address, require_approval
from modules.rewards.measures import pillow_images
from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.system.factories import load_factory


class Client(Protocol):
    """Scores PNG files on a server."""

    def scores(self, pngs: Sequence[bytes], prompts: Sequence[str]) -> list[float]:
        """Return a score for each PNG file, NaN for one without. Raises DarkroomError."""
        ...


@dataclass(frozen=True, slots=True)
class ServerReward:
    """Scores images with a client of a server, without a gradient."""

    client: Client
    is_differentiable: bool = False

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,). Raises DarkroomError where the server gives none, also after some time."""
        pngs = []
        for image in pillow_images(images_B3PP):
            file = io.BytesIO()
            image.save(file, format="PNG", compress_level=1)
            pngs.append(file.getvalue())
        return images_B3PP.new_tensor(self.client.scores(pngs, prompts))


def make_served(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward. Raises DarkroomError where the settings are not valid, or the address is not approved."""
    require_approval(parse_address(scorer.address), context.approved_hashes)
    return ServerReward(load_factory(REWARDS[scorer.kind].client)(scorer, context.patience, context.vision_model_key))
