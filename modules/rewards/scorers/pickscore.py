"""PickScore: a CLIP model trained on human choices between two images of a caption (Kirstain et al. 2023)."""

from __future__ import annotations

from modules.formats.published_files import PublishedFile
from modules.rewards.spec import RewardSpec

SPEC = RewardSpec(
    "pickscore",
    "PickScore",
    "How much people would prefer an image for its caption, trained on choices between two images.",
    "modules.rewards.models.clip_similarity:pickscore",
    "18 to 24",
    files=(
        PublishedFile(
            "file", "yuvalkirstain/PickScore_v1", "", 3_940_000_000, revision="a4e4367c6dfa7288a00c550414478f865b875800"
        ),
    ),
    licence="MIT",
    source="Kirstain et al. 2023, Pick-a-Pic",
)
