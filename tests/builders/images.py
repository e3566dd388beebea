"""Small drawn images with captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

_COLOURS = [(220, 40, 40), (40, 160, 60), (50, 80, 220), (230, 200, 40), (150, 60, 180)]


def draw_folder(folder: Path, *, sizes: list[tuple[int, int]], captions: list[str] | None = None) -> Path:
    """Draw one image per size, each different, with a caption file beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, (width, height) in enumerate(sizes):
        draw_image(width, height, index).save(folder / f"{index:03d}.png")
        caption = captions[index % len(captions)] if captions else f"picture number {index}"
        (folder / f"{index:03d}.txt").write_text(caption, encoding="utf-8")
    return folder


def draw_image(width: int, height: int, index: int) -> Image.Image:
    """A disc on a gradient, coloured by the index."""
    ramp = np.linspace(0, 255, width, dtype=np.uint8)
    grey = np.broadcast_to(ramp, (height, width))
    image = Image.fromarray(np.stack([grey, 255 - grey, grey // 2], axis=-1))
    radius = min(width, height) // 3
    centre = (width // 2 + index % 5, height // 2 - index % 3)
    box = (centre[0] - radius, centre[1] - radius, centre[0] + radius, centre[1] + radius)
    ImageDraw.Draw(image).ellipse(box, fill=_COLOURS[index % len(_COLOURS)])
    return image


def draw_mask(file: Path, width: int = 64, height: int = 64) -> None:
    """A mask with a white rectangle, a little off the middle."""
    mask = Image.new("L", (width, height))
    ImageDraw.Draw(mask).rectangle((width // 4, height // 4, width * 5 // 8, height * 5 // 8), fill=255)
    mask.save(file)
