"""CLIP score: how well an image matches its caption (Radford et al. 2021; Hessel et al. 2021)."""

from __future__ import annotations

from modules.formats.published_files import PublishedFile
from modules.rewards.spec import RewardSpec

SPEC = RewardSpec(
    "clip_score",
    "CLIP score",
    "How well an image matches its caption.",
    "modules.rewards.models.clip_similarity:clip_score",
    "0.2 to 0.4",
    files=(
        PublishedFile(
            "file",
            "openai/clip-vit-large-patch14",
            "",
            1_710_000_000,
            revision="32bd64288804d66eefd0ccbe215aa642df71cc41",
        ),
    ),
    licence="MIT",
    source="Radford et al. 2021; Hessel et al. 2021",
)
