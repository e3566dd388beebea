"""The job that draws a contact sheet of images as they are trained: each augmentation alone, and the uses of each."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Annotated

from annotated_types import Ge, Le
from PIL import Image, ImageDraw

from modules.config.schema import Config
from modules.config.usage import data_in_use
from modules.data.buckets import Size
from modules.data.dataset import Dataset
from modules.data.example import Example
from modules.data.image_settings import AUGMENTATIONS, ImageChanges
from modules.data.images import BrokenImageError
from modules.data.samples import SampleIndex
from modules.data.transforms.recipe import Recipe, draw_recipe, plain_recipe
from modules.data.versions import ImageVersions
from modules.settings.field import Setting
from modules.system.atomic import write_bytes
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.data.datasets import datasets_of
from trainer.data.preview import trained_pixels
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.config import ConfigSettings
from trainer.jobs.spec import Argument, JobSpec, require_ending

_MAX = 200  # images, epochs and uses of an image; a sheet is one PNG
_TILE_PX, _GAP_PX, _LABEL_PX = 224, 8, 16

Tile = tuple[str, Recipe]


class PreviewSettings(ConfigSettings):
    """The config, the size of the sheet and its file."""

    out: Annotated[str, Setting("Write to", "The PNG file to write.", path_kind="save")] = "preview.png"
    num_images: Annotated[
        int, Ge(1), Le(_MAX), Setting("Images", "How many images, spread over all."), Argument("--images")
    ] = 8
    epochs: Annotated[int, Ge(1), Le(_MAX), Setting("Epochs", "The uses in how many epochs.")] = 4
    draws: Annotated[
        int, Ge(1), Le(_MAX), Setting("Uses", "At most how many uses of each image: one for each epoch and repeat.")
    ] = 12


PREVIEW = JobSpec(
    "preview",
    "Contact sheet",
    "Draw a contact sheet of the images as they are trained.",
    PreviewSettings,
    "trainer.jobs.preview:preview",
    shows="text",
)


def preview(settings: PreviewSettings, job: Job) -> JobFinished:
    """Write the sheet and return its path. Raises DarkroomError for another ending, or without images, and OSError."""
    out, config = from_root(settings.out), settings.load().config
    require_ending(out, ".png", "a PNG image")
    sheet = contact_sheet(
        config,
        num_images=settings.num_images,
        num_epochs=settings.epochs,
        num_draws=settings.draws,
        note=lambda note: job.note((note,)),
    )
    content = io.BytesIO()
    sheet.save(content, "PNG")
    write_bytes(out, content.getvalue())
    return JobFinished("Drawn.", (str(out),), text=f"{out}\n")


def contact_sheet(
    config: Config,
    *,
    num_images: int,
    num_epochs: int,
    num_draws: int,
    note: Callable[[str], object] = lambda _note: None,
) -> Image.Image:
    """Return a sheet with a row for each image: plain, each augmentation alone, and its uses in the first epochs.

    Each use is a draw, at its resolution; a row has `num_draws` of them at most. The images are spread over all. Where
    one has a mask, its black area is darkened. A damaged image is left out, and `note` is called with a sentence about
    it. Raises DarkroomError if there are none.
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
        try:
            rows.append(_row(dataset, number, versions, list(islice(uses, num_draws))))
        except BrokenImageError as error:
            note(f"{error}; it is left out.")
    if not rows:
        raise DarkroomError("None of the images can be decoded.", advice="Repair or replace them.")
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
    size = example.image.size
    whole = Recipe(plain_recipe(example.resize_crops[0]).geometry, background=example.background)
    tiles: list[Tile] = [(f"{example.image.path.name} {size} to {whole.bucket}", whole)]
    tiles += _single_augmentations(dataset.concepts[example.concept].image, example, size)
    is_repeated = any(use.repeat for use in uses)
    for use in uses:
        recipe = versions.of(use).recipe
        repeat = f", repeat {use.repeat + 1}" if is_repeated else ""
        size_of_use = f", {recipe.bucket}" if dataset.num_resolutions > 1 else ""
        tiles.append((f"epoch {use.epoch + 1}{repeat}{size_of_use}", recipe))
    return [(label, trained_pixels(example, recipe, dataset.fit)) for label, recipe in tiles]


def _single_augmentations(settings: ImageChanges, example: Example, size: Size) -> Iterator[Tile]:
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
