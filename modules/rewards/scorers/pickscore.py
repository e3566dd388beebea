"""PickScore: a CLIP model taught by people's picks among two images of a caption (Kirstain et al. 2023)."""

from __future__ import annotations

from modules.rewards.spec import RewardFile, RewardSpec

SPEC = RewardSpec(
    "pickscore",
    "PickScore",
    "How well people would like it as an image of its caption, learned from their picks among two.",
    "modules.rewards.models.clip_similarity:pickscore",
    "18 to 24",
    files=(RewardFile("file", "yuvalkirstain/PickScore_v1", "", 3_940_000_000),),
    licence="MIT",
    source="Kirstain et al. 2023, Pick-a-Pic",
)
