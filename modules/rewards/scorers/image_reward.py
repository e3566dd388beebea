"""ImageReward: a BLIP model trained on people's comparisons of images for the same caption."""

from __future__ import annotations

from modules.formats.published_files import PublishedFile
from modules.rewards.spec import RewardSpec

SPEC = RewardSpec(
    "image_reward",
    "ImageReward",
    "How much people would like an image for its caption. Alone it is easily overoptimized: combine it with another.",
    "modules.rewards.models.image_reward:make",
    "about -2 to 2 (mean 0)",
    files=(
        PublishedFile(
            "file",
            "THUDM/ImageReward",
            "ImageReward.pt",
            1_790_000_000,
            revision="5736be03b2652728fb87788c9797b0570450ab72",
        ),
        PublishedFile(
            "vocabulary",
            "google-bert/bert-base-uncased",
            "vocab.txt",
            232_000,
            revision="86b5e0934494bd15c9632b12f734a8a67f723594",
        ),
    ),
    licence="Apache-2.0",
    source="ImageReward v1.0 (Xu et al. 2023, arXiv 2304.05977)",
)
