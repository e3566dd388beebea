"""LAION's aesthetic predictor v2: a small network on top of CLIP's embedding of an image."""

from __future__ import annotations

from modules.formats.published_files import PublishedFile
from modules.rewards.spec import RewardSpec

SPEC = RewardSpec(
    "aesthetic",
    "Aesthetic (LAION)",
    "How pleasing an image is, regardless of its caption.",
    "modules.rewards.models.aesthetic:make",
    "1 to 10",
    files=(
        PublishedFile(
            "file",
            "trl-lib/ddpo-aesthetic-predictor",
            "aesthetic-model.pth",
            3_700_000,
            revision="cf4bd10345610935a80a5d3be9a3133c50f121e4",
        ),
        PublishedFile(
            "clip_model",
            "openai/clip-vit-large-patch14",
            "",
            1_710_000_000,
            revision="32bd64288804d66eefd0ccbe215aa642df71cc41",
        ),
    ),
    licence="Apache-2.0",
    source="LAION aesthetic predictor v2 (sac+logos+ava1-l14-linearMSE)",
)
