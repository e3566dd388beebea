"""Settings of images that change nothing are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.config.rules.images import augmentations, sizes
from tests.builders.configs import laid_over, small_config


@pytest.mark.parametrize(
    ("data", "side_px"),
    [
        ({}, 64),
        ({"bucket_aspect_ratios": "fixed"}, 128),  # OneTrainer's round to the nearest step
        ({"bucket_aspect_ratios": "fixed", "aspect_ratio_bucketing": False}, 64),
    ],
)
def test_a_resolution_between_two_steps_names_the_size_that_is_trained(
    tmp_path: Path, data: dict[str, Any], side_px: int
) -> None:
    small = small_config(tmp_path, model=tmp_path, images=tmp_path)
    config = laid_over(small, {"data": {"resolution_px": [96], "bucket_step_px": 64, **data}})
    [found] = [p for p in sizes(config) if p.path == "data.resolution_px"]
    assert found.message.endswith(f"square images will be {side_px} px.")


def test_an_augmentation_without_strength_is_reported(tmp_path: Path) -> None:
    image = {"rotate": "random", "rotate_max_degrees": 5.0, "hue": "always", "flip": "random"}
    small = small_config(tmp_path, model=tmp_path, images=tmp_path)
    config = laid_over(
        small, {"concepts": [{"path": str(tmp_path), "name": "cats", "image": image, "image_variations": 2}]}
    )
    found = list(augmentations(config))
    assert [(p.path, p.severity) for p in found] == [("concepts.0.image.hue_max", "warning")]
    assert "Hue is on for the concept cats, but its strength is 0" in found[0].message


@pytest.mark.parametrize(
    ("concept", "changes", "is_reported"),
    [
        ({}, {}, True),
        ({"image_variations": 2}, {}, False),
        ({"image": {"flip": "always"}}, {}, False),
        ({"enabled": False}, {}, False),
        ({"kind": "validation"}, {}, False),
        ({"kind": "regularization"}, {}, True),
        ({}, {"data": {"latent_cache": False}}, False),
        ({}, {"training": {"epochs": 1}}, False),
    ],
)
def test_a_random_augmentation_that_is_drawn_once_is_reported(
    tmp_path: Path, concept: dict[str, Any], changes: dict[str, Any], is_reported: bool
) -> None:
    cats = {"path": str(tmp_path), "name": "cats", "image": {"flip": "random"}, **concept}
    small = small_config(tmp_path, model=tmp_path, images=tmp_path, training={"epochs": 2})
    found = list(augmentations(laid_over(small, {"concepts": [cats], **changes})))
    assert [(p.path, p.severity) for p in found] == [("concepts.0.image_variations", "warning")] * is_reported
