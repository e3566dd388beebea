"""Settings of images that change nothing are reported."""

from __future__ import annotations

from pathlib import Path

from modules.config.rules.images import augmentations
from tests.builders.configs import laid_over, small_config


def test_an_augmentation_without_strength_is_reported(tmp_path: Path) -> None:
    image = {"rotate": "random", "rotate_max_degrees": 5.0, "hue": "always", "flip": "random"}
    small = small_config(tmp_path, model=tmp_path, images=tmp_path)
    config = laid_over(small, {"concepts": [{"path": str(tmp_path), "name": "cats", "image": image}]})
    found = list(augmentations(config))
    assert [(p.path, p.severity) for p in found] == [("concepts.0.image.hue_max", "warning")]
    assert "Hue is on for the concept cats, but its strength is 0" in found[0].message
