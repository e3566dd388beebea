"""A folder of drawn images with captions: good ones, and others with one planted fault each."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from tests.builders.icc import rgb_profile

ADOBE_RGB = rgb_profile(((0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446)), 2.2)
_TAGS = [f"{a} {b}" for a in ("red", "blue", "green", "tall", "small") for b in ("cat", "house", "tree", "car")]


def draw_scene(number: int, width: int = 256, height: int = 256) -> Image.Image:
    """Forty shapes on a ground of soft colours, with the grain of a photograph; each number is another scene."""
    draw, noise = random.Random(number), np.random.default_rng(number)
    soft = noise.integers(0, 255, (6, 6, 3)).astype(np.uint8)
    image = Image.fromarray(soft).resize((width, height), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    for _ in range(40):
        x, y, side = draw.randrange(width), draw.randrange(height), draw.randrange(5, max(6, min(width, height) // 4))
        colour = (draw.randrange(256), draw.randrange(256), draw.randrange(256))
        draw.choice([pen.ellipse, pen.rectangle])((x, y, x + side, y + side), fill=colour)
    grainy = np.asarray(image).astype(np.int16) + noise.integers(-10, 11, (height, width, 1))
    return Image.fromarray(grainy.clip(0, 255).astype(np.uint8))


def write_caption(image: Path, number: int, *more: str) -> None:
    """A trigger word and some tags, each of which is in several captions."""
    tags = ["zog", *random.Random(number).sample(_TAGS, 8), *more]
    image.with_suffix(".txt").write_text(", ".join(tags), encoding="utf-8")


def draw_good_images(folder: Path, count: int = 20) -> None:
    """Scenes without a fault, named good-00.jpg and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"good-{number:02}.jpg"
        draw_scene(number).save(path, quality=90)
        write_caption(path, number)


def plant_faulty_images(folder: Path) -> None:
    """Images with one fault each, named after it."""
    scenes = {
        "blurred.jpg": draw_scene(100).filter(ImageFilter.GaussianBlur(7)),
        "noise.png": Image.effect_noise((256, 256), 80),
        "dark.png": draw_scene(101).point(lambda v: int(v * 0.17)),
        "pale.png": draw_scene(102).point(lambda v: 255 - int((255 - v) * 0.3)),
        "plain.png": Image.fromarray(np.random.default_rng(1).integers(118, 123, (256, 256, 3)).astype(np.uint8)),
        "bars.jpg": _with_bars(draw_scene(103, 256, 180)),
        "tiny.png": draw_scene(104, 64, 64),
        "strip.png": draw_scene(105, 900, 220),
        "copy.jpg": Image.open(folder / "good-00.jpg").resize((230, 230)),
        "adobe.png": draw_scene(106),
        "hole.png": _with_hole(draw_scene(107)),
        "animation.gif": draw_scene(108),
        "broken.jpg": draw_scene(109),
    }
    for number, (name, image) in enumerate(scenes.items()):
        options = {"icc_profile": ADOBE_RGB} if name == "adobe.png" else {}
        if name == "animation.gif":
            image.save(folder / name, save_all=True, append_images=[draw_scene(110)])
        else:
            image.save(folder / name, **options)
        write_caption(folder / name, number + 20)
    broken = folder / "broken.jpg"
    broken.write_bytes(broken.read_bytes()[:4000])
    (folder / "letter.png").write_text("Dear reader", encoding="utf-8")


def plant_faulty_captions(folder: Path) -> None:
    """Good images with a fault in the caption each, named after it."""
    names = ("missing", "empty", "utf16", "same-1", "same-2", "misspelled", "long")
    for number, name in enumerate(names):
        draw_scene(200 + number).save(folder / f"{name}.jpg", quality=90)
        write_caption(folder / f"{name}.jpg", number + 40)
    (folder / "missing.txt").unlink()
    (folder / "empty.txt").write_text("\n", encoding="utf-8")
    utf16 = folder / "utf16.txt"
    utf16.write_text(utf16.read_text(encoding="utf-8"), encoding="utf-16")
    (folder / "same-2.txt").write_bytes((folder / "same-1.txt").read_bytes())
    write_caption(folder / "misspelled.jpg", 45, "bleu haus")
    write_caption(folder / "long.jpg", 46, *_TAGS * 2)


def _with_bars(image: Image.Image) -> Image.Image:
    whole = Image.new("RGB", (image.width, 256), (4, 4, 4))
    whole.paste(image, (0, (256 - image.height) // 2))
    return whole


def _with_hole(image: Image.Image) -> Image.Image:
    hole = Image.new("L", image.size, 255)
    ImageDraw.Draw(hole).ellipse((80, 80, 180, 180), fill=0)
    image.putalpha(hole)
    return image
