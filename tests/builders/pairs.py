"""Small drawn preference pairs with captions."""

from __future__ import annotations

from pathlib import Path

from PIL import ImageEnhance, ImageOps

from tests.builders.images import draw_image


def draw_pairs(
    folder: Path, *, sizes: list[tuple[int, int]], captions: list[str] | None = None, is_swapped: bool = False
) -> Path:
    """Draw one pair per size: a bright chosen image and a dark, inverted rejected one; or swapped."""
    sides = ("rejected", "chosen") if is_swapped else ("chosen", "rejected")
    for side in sides:
        (folder / side).mkdir(parents=True, exist_ok=True)
    for index, size in enumerate(sizes):
        image = draw_image(*size, index)
        ImageEnhance.Brightness(image).enhance(1.5).save(folder / sides[0] / f"{index:03d}.png")
        ImageEnhance.Brightness(ImageOps.invert(image)).enhance(0.5).save(folder / sides[1] / f"{index:03d}.png")
        caption = captions[index % len(captions)] if captions else f"image number {index}"
        (folder / "chosen" / f"{index:03d}.txt").write_text(caption, encoding="utf-8")
    return folder
