"""Images with one to three reference images each, in folders of equal names, and the config of a run on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from modules.config.schema import Config
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_image

# The images that have a second and a third reference image, and the sizes of these.
NUM_IMAGES, WITH_SECOND, WITH_THIRD = 6, (0, 1, 2, 3), (0, 1)
SECOND_PX, THIRD_PX = (96, 48), (48, 48)


def draw_referenced(folder: Path) -> Path:
    """Draw the folders `after`, with captions, `before`, `garment` and `style` of images of the same names."""
    for name in ("after", "before", "garment", "style"):
        (folder / name).mkdir(parents=True)
    for number in range(NUM_IMAGES):
        image = draw_image(64, 64, number)
        image.transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(folder / "after" / f"{number}.png")
        (folder / "after" / f"{number}.txt").write_text("turned", encoding="utf-8")
        image.save(folder / "before" / f"{number}.png")
    for number in WITH_SECOND:
        draw_image(*SECOND_PX, 10 + number).save(folder / "garment" / f"{number}.png")
    for number in WITH_THIRD:
        draw_image(*THIRD_PX, 20 + number).save(folder / "style" / f"{number}.png")
    return folder


def referenced_config(tmp_path: Path, model: Path, settings: dict[str, Any]) -> Config:
    """Return the config of one epoch over these images, of an editing model with some settings of its family."""
    folder = draw_referenced(tmp_path / "data")
    folders = ("before", "garment", "style")
    names = ("conditioning_folder", "conditioning_folder_2", "conditioning_folder_3")
    image = {name: str(folder / place) for name, place in zip(names, folders, strict=True)}
    config = small_config(tmp_path, model=model, images=folder / "after")
    encoders = config.family.names_of("text_encoder")
    return laid_over(
        config,
        {
            "model": {"variant": "edit", "family": settings},
            "concepts": [{"path": str(folder / "after"), "image": image}],
            "parts": {name: {"train": False} for name in encoders},
            "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.01},
            "output": {"dtype": "float32"},
        },
    )
