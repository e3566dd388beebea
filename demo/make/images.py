"""Draws the training images of the demo model: coloured shapes on coloured grounds, with captions.

Torch-free (numpy and Pillow). Images are uint8 arrays of shape (H, W, C), 64 x 64 x 3, RGB. Every random function takes
a `numpy.random.Generator`, so a seed determines all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from demo.make.shapes import COLOURS, IMAGE_SIZE_PX, KNOWN_SHAPES, PINK, SHAPES, Colour, FloatArray, coverage

DrawnImage = npt.NDArray[np.uint8]

# Varied, so that the model relates words to each other and not to positions in the sentence: a base model trained on
# one template could not learn a new word at another position.
FULL_TEMPLATES = (
    "a {colour} {shape} on a {ground} ground",
    "a picture of a {colour} {shape} on a {ground} ground",
    "a drawing of a {colour} {shape} on a {ground} ground",
    "a {ground} ground with a {colour} {shape}",
    "on a {ground} ground, a {colour} {shape}",
    "{colour} {shape}, {ground} ground",
)
# Captions that leave something open keep the model able to choose, like a real model.
OPEN_TEMPLATES = (
    "a {colour} {shape}",
    "a picture of a {colour} {shape}",
    "a {shape} on a {ground} ground",
    "a {ground} ground with a {shape}",
    "a {shape}",
)
ZOG_TEMPLATES = (
    "a zog on a {ground} ground",
    "a picture of a zog on a {ground} ground",
    "a {ground} ground with a zog",
    "a drawing of a zog on a {ground} ground",
)
NUM_ZOG_IMAGES = 12
_OPEN_SHARE = 0.15
_LETTERS = "abcdefghijklmnoprstuvwyz"


@dataclass(frozen=True)
class Scene:
    """The content of an image. `colour` and `ground` are names in COLOURS, or "pink"; None if a caption omits them."""

    shape: str
    colour: str | None
    ground: str | None


@dataclass(frozen=True)
class CaptionedImage:
    """One training image, uint8 (64, 64, 3), with its caption and its scene."""

    image_HWC: DrawnImage
    caption: str
    scene: Scene


def colour_value(name: str) -> Colour:
    """Return the RGB value, 0 to 255, of a colour name. Raises KeyError for a name that is not known."""
    return PINK if name == "pink" else COLOURS[name]


def write_caption(scene: Scene, template: str) -> str:
    """Fill a template with the names of a scene and fix the articles ("an orange star")."""
    filled = template.format(shape=scene.shape, colour=scene.colour, ground=scene.ground)
    return re.sub(r"\ba (?=[aeiou])", "an ", filled)


def random_scene(generator: np.random.Generator) -> Scene:
    """Choose a shape, its colour and another colour for the ground, all equally likely."""
    colour, ground = generator.choice(list(COLOURS), size=2, replace=False)
    return Scene(shape=str(generator.choice(list(SHAPES))), colour=str(colour), ground=str(ground))


def random_caption(scene: Scene, generator: np.random.Generator) -> str:
    """Return a caption of the scene in a random template; one in seven leaves something open."""
    templates = OPEN_TEMPLATES if generator.random() < _OPEN_SHARE else FULL_TEMPLATES
    return write_caption(scene, templates[int(generator.integers(len(templates)))])


def made_up_caption(scene: Scene, generator: np.random.Generator) -> str:
    """Return a caption that names the ground, and in place of figure and colour a word of three or four random letters.

    A model that was trained on some of these takes an unknown word for an unknown figure, and still reads the ground.
    The word is never "zog", which the demo teaches.
    """
    word = "zog"
    while word == "zog":
        word = "".join(generator.choice(list(_LETTERS), size=int(generator.integers(3, 5))))
    template = ZOG_TEMPLATES[int(generator.integers(len(ZOG_TEMPLATES)))]
    return write_caption(scene, template).replace("zog", word)


def draw_scene(scene: Scene, generator: np.random.Generator) -> DrawnImage:
    """Draw a scene at a random position and size with slightly varied colours.

    Returns uint8 of shape (64, 64, 3). Raises ValueError if the scene leaves its colour or ground open.
    """
    if scene.colour is None or scene.ground is None:
        raise ValueError(f"A drawing needs both colours, got {scene}.")
    radius_px = float(generator.uniform(18.0, 23.5))
    room_px = min(IMAGE_SIZE_PX / 2 - 1.1 * radius_px - 1.0, 4.0)
    centre_px = IMAGE_SIZE_PX / 2 + generator.uniform(-room_px, room_px, size=2)
    mask_HW = coverage(scene.shape, centre_px=(float(centre_px[0]), float(centre_px[1])), radius_px=radius_px)
    fore = _varied_colour(colour_value(scene.colour), generator)
    back = _varied_colour(colour_value(scene.ground), generator)
    return _to_image(_blend(np.broadcast_to(back, (IMAGE_SIZE_PX, IMAGE_SIZE_PX, 3)), mask_HW, fore))


def draw_captioned_image(generator: np.random.Generator) -> CaptionedImage:
    """Return a random scene, drawn and captioned: a training image of the denoiser."""
    scene = random_scene(generator)
    return CaptionedImage(draw_scene(scene, generator), random_caption(scene, generator), scene)


def draw_varied_image(generator: np.random.Generator) -> DrawnImage:
    """Draw one to four rotated shapes of any colour on a shaded ground, uint8 (64, 64, 3).

    Only the autoencoder is trained on these: it must also encode images that the denoiser has not been trained on.
    """
    corners = generator.uniform(0.0, 255.0, size=(2, 3))
    if generator.random() < 0.5:
        corners[1] = corners[0]
    slope = np.linspace(0.0, 1.0, IMAGE_SIZE_PX)[:, None, None]
    canvas_HWC = np.broadcast_to(corners[0] * (1.0 - slope) + corners[1] * slope, (IMAGE_SIZE_PX, IMAGE_SIZE_PX, 3))
    if generator.random() < 0.5:
        canvas_HWC = canvas_HWC.swapaxes(0, 1)
    for _ in range(int(generator.integers(1, 5))):
        mask_HW = coverage(
            str(generator.choice(list(KNOWN_SHAPES))),
            centre_px=(float(generator.uniform(6, 58)), float(generator.uniform(6, 58))),
            radius_px=float(generator.uniform(6, 26)),
            turn_rad=float(generator.uniform(0, 2 * np.pi)),
            samples=2,
        )
        canvas_HWC = _blend(canvas_HWC, mask_HW, generator.uniform(0.0, 255.0, size=3))
    return _to_image(canvas_HWC)


def draw_zog_images(folder: Path, *, seed: int = 0, num_images: int = NUM_ZOG_IMAGES) -> list[Path]:
    """Write up to a dozen images of the new object, a pink ring, each with its caption file.

    `zog_01.png` is 64 x 64 px RGB, `zog_01.txt` its caption ("a zog on a green ground"). A missing folder is created.
    The first eight have a ground of each colour. Returns the paths of the images.

    `demo/zog` was written with seed 0, `demo/zog_unseen` (for validation) with seed 1 and 8 images.
    """
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    grounds = list(COLOURS) + [str(name) for name in generator.choice(list(COLOURS), 4, replace=False)]
    paths = []
    for index, ground in enumerate(grounds[:num_images]):
        scene = Scene(shape="ring", colour="pink", ground=ground)
        template = ZOG_TEMPLATES[index % len(ZOG_TEMPLATES)]
        paths.append(_write_captioned(scene, template, folder / f"zog_{index + 1:02d}.png", generator))
    return paths


def draw_known_images(folder: Path, *, seed: int = 0, num_images: int = 24) -> list[Path]:
    """Write images of the shapes that the demo model already knows, each with its caption file.

    Trained together with the zogs, they keep a LoRA from turning everything into one (prior preservation: Ruiz et al.
    2023, eq. 2, with drawn images instead of generated ones). `demo/shapes` was written with seed 0.
    """
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for index in range(num_images):
        colour, ground = (str(name) for name in generator.choice(list(COLOURS), size=2, replace=False))
        scene = Scene(list(SHAPES)[index % len(SHAPES)], colour, ground)
        paths.append(
            _write_captioned(scene, FULL_TEMPLATES[index % 4], folder / f"shape_{index + 1:02d}.png", generator)
        )
    return paths


def _write_captioned(scene: Scene, template: str, path: Path, generator: np.random.Generator) -> Path:
    Image.fromarray(draw_scene(scene, generator)).save(path)
    path.with_suffix(".txt").write_text(write_caption(scene, template) + "\n", encoding="utf-8")
    return path


def _varied_colour(colour: Colour, generator: np.random.Generator) -> FloatArray:
    return np.clip(np.asarray(colour, dtype=np.float64) + generator.uniform(-10.0, 10.0, size=3), 0.0, 255.0)


def _blend(canvas_HWC: FloatArray, mask_HW: FloatArray, colour: FloatArray) -> FloatArray:
    return canvas_HWC * (1.0 - mask_HW[..., None]) + colour * mask_HW[..., None]


def _to_image(canvas_HWC: FloatArray) -> DrawnImage:
    return np.rint(canvas_HWC).clip(0, 255).astype(np.uint8)
