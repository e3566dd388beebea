"""HPS v2: a CLIP ViT-H taught by people's rankings of images of one caption (Wu et al. 2023).

Published in OpenCLIP's layout; what is no square is padded, as its authors do. v2 and v2.1 give numbers that do not
compare.
"""

from __future__ import annotations

from modules.rewards.spec import RewardFile, RewardSpec

SPEC = RewardSpec(
    "hps",
    "Human preference (HPS v2)",
    "How well people would like it as an image of its caption. Only images of one caption compare.",
    "modules.rewards.models.clip_similarity:hps",
    "0.2 to 0.4",
    files=(RewardFile("file", "xswu/HPSv2", "HPS_v2_compressed.pt", 1_970_000_000, item_bytes=2),),
    licence="Apache-2.0",
    source="Wu et al. 2023, Human Preference Score v2",
)
