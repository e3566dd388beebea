"""The rule that tells drawings from photographs, and the captioner that is proposed for each."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import skimage
from PIL import Image, ImageDraw

from modules.annotators.drawn import is_drawn, look_drawn
from modules.annotators.registry import captioner_for

PHOTOGRAPHS = Path(skimage.__file__).parent / "data"


def draw(seed: int, num_shapes: int = 40) -> Image.Image:
    """Discs with an outline, as a cartoon has them, in a JPEG file."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", (512, 512), tuple(random.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(num_shapes):
        x, y, radius = random.integers(0, 512, 3).tolist()
        fill = tuple(random.integers(0, 256, 3).tolist())
        box = (x - radius // 4, y - radius // 4, x + radius // 4 + 1, y + radius // 4 + 1)
        pen.ellipse(box, fill=fill, outline=(20, 20, 20), width=4)
    file = BytesIO()
    image.save(file, "JPEG", quality=80)
    return Image.open(file).convert("RGB")


@pytest.mark.parametrize("seed", range(4))
def test_flat_areas_with_outlines_are_drawn(seed: int) -> None:
    assert is_drawn(draw(seed))


@pytest.mark.parametrize("name", ["astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "brick.png", "moon.png"])
def test_photographs_are_not(name: str) -> None:
    with Image.open(PHOTOGRAPHS / name) as photograph:
        assert not is_drawn(photograph.convert("RGB"))


@pytest.mark.parametrize("name", ["astronaut.png", "rocket.jpg"])
def test_nor_is_a_photograph_on_white(name: str) -> None:
    white = Image.new("RGB", (1000, 1000), "white")
    with Image.open(PHOTOGRAPHS / name) as photograph:
        white.paste(photograph.convert("RGB").resize((450, 450)), (270, 270))
    assert not is_drawn(white)


def test_a_drawing_of_few_shapes_on_a_plain_background_is_drawn() -> None:
    assert is_drawn(draw(1, num_shapes=8))


@pytest.mark.parametrize("size", [(400, 1), (400, 400)])
def test_a_plain_image_is_not_drawn(size: tuple[int, int]) -> None:
    assert not is_drawn(Image.new("RGB", size))


def test_most_images_of_a_folder_decide(tmp_path: Path) -> None:
    assert not look_drawn(tmp_path, include_subfolders=False)
    (tmp_path / "broken.png").write_bytes(b"no image")
    draw(0).save(tmp_path / "a.png")
    assert look_drawn(tmp_path, include_subfolders=False)
    for name in ("astronaut.png", "chelsea.png"):
        (tmp_path / name).write_bytes((PHOTOGRAPHS / name).read_bytes())
    assert not look_drawn(tmp_path, include_subfolders=False)


def test_drawings_get_a_tagger_and_photographs_do_not() -> None:
    assert captioner_for(are_drawn=True).is_for_drawings
    assert not captioner_for(are_drawn=False).is_for_drawings
