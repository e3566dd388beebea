"""The image encoders by which images are compared with training images, one record each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from modules.formats.published_files import PublishedFile
from modules.rewards.records import CLIP_SCORE

if TYPE_CHECKING:
    import torch


class ImageEncoder(Protocol):
    """Turns images into embeddings."""

    def images(self, images_B3PP: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (B, D) of images in [0, 1], normalised to length 1."""
        ...


@dataclass(frozen=True, slots=True)
class SimilaritySpec:
    """A similarity to the training images. `score` is the name of its score in files; `factory` makes the
    `ImageEncoder` of a folder and a `RewardContext`, as "module:function".
    """

    name: str
    score: str
    label: str
    help: str
    published: PublishedFile
    factory: str


CLIP_SIMILARITY = SimilaritySpec(
    "clip",
    "training_similarity",
    "Training images (CLIP)",
    "Compares what images show: the kind of subject, the scene, the style.",
    CLIP_SCORE.files[0],
    "modules.rewards.models.clip:make_clip",
)

DINO_SIMILARITY = SimilaritySpec(
    "dino",
    "training_similarity_dino",
    "Training images (DINO)",
    "Compares how a subject looks in detail: two different dogs are less similar than with CLIP.",
    PublishedFile("dino_model", "facebook/dinov2-base", "", 346_000_000),
    "modules.rewards.models.dino:make_dino",
)

SIMILARITIES: Mapping[str, SimilaritySpec] = {spec.name: spec for spec in (CLIP_SIMILARITY, DINO_SIMILARITY)}
