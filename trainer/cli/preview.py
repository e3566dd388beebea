"""preview: a contact sheet of what the trainer sees: for each image, every augmentation alone and several versions."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from PIL import Image, ImageDraw

from modules.config.method_facts import data_in_use
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.dataset import Dataset, Example
from modules.data.image_settings import AUGMENTATIONS, ImageChanges
from modules.data.order import SampleIndex
from modules.data.transforms.recipe import Recipe, draw_recipe, plain_recipe
from modules.data.versions import ImageVersions
from modules.system.atomic import write_bytes
from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.options import add_config_argument, read_config
from trainer.data.datasets import datasets_of
from trainer.data.preview import seen_pixels

_MOST = 200  # images, epochs and uses of an image; a sheet is one PNG
_TILE_PX, _GAP_PX, _LABEL_PX = 224, 8, 16

Tile = tuple[str, Recipe]


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MOST}")
    return number


def _preview(options: argparse.Namespace) -> int:
    config = read_config(options.config, options.changes, preset=options.preset).config
    sheet = contact_sheet(config, num_images=options.num_images, num_epochs=options.epochs, num_draws=options.draws)
    content = io.BytesIO()
    sheet.save(content, "PNG")
    out = Path(from_caller(options.out))
    write_bytes(out, content.getvalue())
    sys.stdout.write(f"{out}\n")
    return 0


def contact_sheet(config: Config, *, num_images: int, num_epochs: int, num_draws: int) -> Image.Image:
    """Return a sheet with a row for each image: plain, each augmentation alone, and its uses in the first epochs.

    Each use is a draw, at its resolution; a row has `num_draws` of them at most. The images are spread over all. Where
    one has a mask, its black area is darkened. Raises DarkroomError if there are none.
    """
    datasets = datasets_of(config)
    dataset = datasets.training
    with_image = [n for n, example in enumerate(dataset.examples) if example.image.has_image]
    if not with_image:
        raise DarkroomError("There are no images to preview.", advice="Add a concept and choose its folder.")
    versions = ImageVersions(dataset, datasets.settings.run_seed, is_cached=data_in_use(config).latent_cache)
    rows = []
    for number in with_image[:: max(1, len(with_image) // num_images)][:num_images]:
        uses = (s for epoch in range(num_epochs) for s in datasets.plans.samples_of(number, epoch))
        rows.append(_row(dataset, number, versions, list(islice(uses, num_draws))))
    width = max(map(len, rows)) * (_TILE_PX + _GAP_PX) + _GAP_PX
    sheet = Image.new("RGB", (width, len(rows) * (_TILE_PX + _LABEL_PX + _GAP_PX) + _GAP_PX), (32, 32, 32))
    for row_number, row in enumerate(rows):
        for column, (label, image) in enumerate(row):
            left = _GAP_PX + column * (_TILE_PX + _GAP_PX)
            top = _GAP_PX + row_number * (_TILE_PX + _LABEL_PX + _GAP_PX)
            image.thumbnail((_TILE_PX, _TILE_PX))
            sheet.paste(image, (left, top + _LABEL_PX))
            ImageDraw.Draw(sheet).text((left, top), label[:38], fill=(230, 230, 230))
    return sheet


def _row(
    dataset: Dataset, number: int, versions: ImageVersions, uses: Sequence[SampleIndex]
) -> list[tuple[str, Image.Image]]:
    example = dataset.examples[number]
    size = Size(example.image.width_px, example.image.height_px)
    whole = Recipe(plain_recipe(example.resize_crops[0]).geometry, background=example.background)
    tiles: list[Tile] = [(f"{example.image.path.name} {size} to {whole.bucket}", whole)]
    tiles += _alone(dataset.concepts[example.concept].image, example, size)
    is_repeated = any(use.repeat for use in uses)
    for use in uses:
        recipe = versions.of(use).recipe
        repeat = f", repeat {use.repeat + 1}" if is_repeated else ""
        size_of_use = f", {recipe.bucket}" if dataset.num_resolutions > 1 else ""
        tiles.append((f"epoch {use.epoch + 1}{repeat}{size_of_use}", recipe))
    return [(label, seen_pixels(example, recipe)) for label, recipe in tiles]


def _alone(settings: ImageChanges, example: Example, size: Size) -> Iterator[Tile]:
    """Yield each augmentation that is on, as if it were the only one."""
    for name, off in AUGMENTATIONS.items():
        if getattr(settings, name) == off:
            continue
        only = settings.model_copy(update={other: o for other, o in AUGMENTATIONS.items() if other != name})
        recipe = draw_recipe(
            only,
            size=size,
            resize_crop=example.resize_crops[0],
            mask_box=example.mask_box,
            seed=0,
            background=example.background,
        )
        yield name.replace("_", " "), recipe


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument("--out", metavar="FILE", default="preview.png", help="the PNG file to write")
    images, epochs = "how many images, spread over all (default: 8)", "the uses in how many epochs (default: 4)"
    draws = "at most how many uses of each image: one for each epoch and repeat (default: 12)"
    parser.add_argument("--num-images", type=_positive, default=8, help=images)
    parser.add_argument("--epochs", type=_positive, default=4, help=epochs)
    parser.add_argument("--draws", type=_positive, default=12, help=draws)


PREVIEW = Verb("draw a contact sheet of the images as they are trained", _arguments, _preview)
