"""Writing samples: PNG files with their settings, and one labelled image of a whole grid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from modules.data.images import open_image
from modules.sampling.registry import SAMPLERS
from modules.system.atomic import atomic_file
from modules.system.paths import safe_name
from trainer.jobs.sample_sources import Cell

SETTINGS_KEY = "darkroom_sample"
"""The key of a sample's settings in the metadata of its file, as JSON; "parameters" has them as A1111 writes them."""
_GAP_PX = 4
_MAX_SIDE_PX = 16_384
_BACKGROUND, _INK = (255, 255, 255), (20, 20, 20)


def settings_of(cell: Cell, base_model: str) -> dict[str, Any]:
    """Return the settings of an image, as JSON-safe data."""
    prompt = cell.prompt.model_dump()
    prompt.pop("enabled", None)
    weights = cell.weights
    return {
        **prompt,
        "model": weights.model or base_model,
        "adapters": [{"file": Path(a.path).name, "strength": a.strength} for a in weights.adapters],
        **({"backup": weights.backup} if weights.backup else {}),
    }


def parameters_text(settings: Mapping[str, Any]) -> str:
    """Return an image's settings in the form that A1111, Forge and image viewers read."""
    lines = [str(settings["prompt"])]
    lines[0] += "".join(f" <lora:{Path(a['file']).stem}:{a['strength']:g}>" for a in settings["adapters"])
    if settings["negative_prompt"]:
        lines.append(f"Negative prompt: {settings['negative_prompt']}")
    sampler = SAMPLERS[settings["sampler"]].label
    lines.append(
        f"Steps: {settings['steps']}, Sampler: {sampler}, CFG scale: {settings['guidance']:g}, "
        f"Seed: {settings['seed']}, Size: {settings['width_px']}x{settings['height_px']}, "
        f"Model: {Path(str(settings['model'])).stem}"
    )
    return "\n".join(lines)


def write_image(image: Image.Image, path: Path, settings: Mapping[str, Any]) -> None:
    """Write an image as PNG with its settings in the metadata, atomically. Raises OSError."""
    info = PngInfo()
    info.add_text("parameters", parameters_text(settings))
    info.add_text(SETTINGS_KEY, json.dumps(settings))
    with atomic_file(path) as temporary:
        image.save(temporary, format="PNG", pnginfo=info)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in an image's metadata; empty for an image without any."""
    try:
        with open_image(path) as image:
            data = json.loads(image.info.get(SETTINGS_KEY, "{}"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def image_name(cell: Cell, index: int) -> str:
    """Return the name of an image's file; `index` counts the images in the folder."""
    label = " ".join(label for label in cell.labels if label)
    words = safe_name(label or cell.prompt.prompt, max_chars=50)
    return f"{index + 1:04d} {words} seed {cell.prompt.seed}.png"


def compose_grid(
    images: Mapping[tuple[int, int], Image.Image], columns: Sequence[str], rows: Sequence[str], *, title: str = ""
) -> Image.Image:
    """Return one image of a grid's cells by column and row, with the labels of its columns and rows, and a title."""
    width = max(image.width for image in images.values())
    height = max(image.height for image in images.values())
    font = ImageFont.load_default(max(11, min(28, width // 14)))
    left = _label_width(rows, font, width) if any(rows) else 0
    title_px = _text_height(title, font, left + len(columns) * (width + _GAP_PX)) if title else 0
    top = title_px + (max(_text_height(label, font, width) for label in columns) if any(columns) else 0)
    size = (left + len(columns) * (width + _GAP_PX), top + len(rows) * (height + _GAP_PX))
    sheet = Image.new("RGB", size, _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    if title:
        _write(draw, title, font, (0, 0, size[0], title_px))
    for column, label in enumerate(columns):
        x = left + column * (width + _GAP_PX)
        _write(draw, label, font, (x, title_px, x + width, top))
    for row, label in enumerate(rows):
        y = top + row * (height + _GAP_PX)
        _write(draw, label, font, (0, y, left, y + height))
    for (column, row), image in images.items():
        x, y = left + column * (width + _GAP_PX), top + row * (height + _GAP_PX)
        sheet.paste(image, (x + (width - image.width) // 2, y + (height - image.height) // 2))
    if max(sheet.size) > _MAX_SIDE_PX:
        sheet.thumbnail((_MAX_SIDE_PX, _MAX_SIDE_PX))
    return sheet


_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _label_width(labels: Sequence[str], font: _Font, most: int) -> int:
    return min(most, max(int(font.getlength(label)) for label in labels) + 16)


def _lines(text: str, font: _Font, width: int) -> list[str]:
    """Return a text wrapped at spaces to a width, at most four lines."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width - 8:
            lines.append(word)
        else:
            lines[-1] = longer
    shown = lines[:4]
    return [*shown[:-1], f"{shown[-1]}..."] if len(lines) > len(shown) else shown


def _line_px(font: _Font) -> int:
    return int(font.getbbox("Ag")[3]) + 4


def _text_height(text: str, font: _Font, width: int) -> int:
    return len(_lines(text, font, width)) * _line_px(font) + 8


def _write(draw: ImageDraw.ImageDraw, text: str, font: _Font, box: tuple[int, int, int, int]) -> None:
    """Write a text in the middle of a box, wrapped to its width."""
    left, top, right, bottom = box
    lines, line_px = _lines(text, font, right - left), _line_px(font)
    y = top + (bottom - top - len(lines) * line_px) / 2
    for line in lines:
        draw.text((left + (right - left - font.getlength(line)) / 2, y), line, fill=_INK, font=font)
        y += line_px
