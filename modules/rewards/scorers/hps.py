"""HPS v2: a CLIP ViT-H trained on human rankings of images of the same caption (Wu et al. 2023).

Published in OpenCLIP's layout; images that are not square are padded, as its authors do. Scores of v2 and v2.1 are not
comparable.
"""

from __future__ import annotations

from modules.formats.published_files import PublishedFile
from modules.rewards.spec import RewardSpec

SPEC = RewardSpec(
    "hps",
    "Human preference (HPS v2)",
    "How much people would prefer an image for its caption. Only scores for the same caption are comparable.",
    "modules.rewards.models.clip_similarity:hps",
    "0.2 to 0.4",
    files=(
        PublishedFile(
            "file",
            "xswu/HPSv2",
            "HPS_v2_compressed.pt",
            1_970_000_000,
            item_bytes=2,
            revision="697403c78157020a1ae59d23f111aa58ced35b0a",
        ),
    ),
    licence="Apache-2.0",
    source="Wu et al. 2023, Human Preference Score v2",
)
