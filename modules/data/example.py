"""An example of a dataset: an image of a concept with its companions, and how it is resized and cropped to buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from modules.data.buckets import BucketRules, ResizeCrop, Size
from modules.data.companions import Companion, box_of_mask, find_input_file, find_mask, named_file
from modules.data.concept import Concept
from modules.data.decode import WHITE, Rgb, colour_of
from modules.data.images import BrokenImageError
from modules.data.inputs import NO_INPUTS, ModelInput
from modules.data.listing import SkippedEntry
from modules.data.metadata import MetadataCaptions
from modules.data.source_image import SourceImage
from modules.data.transforms.geometry import Box
from modules.data.transforms.recipe import angles_of
from modules.system.paths import from_root


@dataclass(frozen=True, slots=True)
class Example:
    """An image of a concept, with its resize and center crop at each resolution; or a prompt with its sizes.

    `background` is the colour behind its transparent places; None if it has none. `place` is the folder of its image
    within the concept's, with a slash at its end, or its whole `name` if that ends differently. `mask_box` is
    the box around the white of its mask, in pixels of the image, where the concept crops to masks. `input_files` are
    the files of the model's further inputs that it has, by their name. `rejected_background` belongs to the rejected
    image of a pair, whose chosen image this is.
    """

    image: SourceImage
    concept: int
    resize_crops: tuple[ResizeCrop, ...]
    background: Rgb | None = None
    place: str = ""
    mask: Companion | None = None
    mask_box: Box | None = None
    input_files: Mapping[str, Companion] = field(default_factory=dict)
    rejected_background: Rgb | None = None

    @property
    def name(self) -> str:
        """Its path within the concept's folder, from which its augmentations are drawn."""
        return self.place + self.image.file_name if self.place[-1:] in ("", "/") else self.place


@dataclass(frozen=True, slots=True)
class WantedCompanions:
    """The files next to the images that a run uses. Masks are also read for concepts that crop to them.

    `inputs` are the further inputs of the model; one whose file is not to be read has no suffix.
    """

    masks: bool = False
    inputs: tuple[ModelInput, ...] = ()

    @property
    def draws_masks(self) -> bool:
        """Whether images without a mask get a random inpainting mask."""
        return any(i.is_mask for i in self.inputs)

    @property
    def references(self) -> tuple[ModelInput, ...]:
        """The reference images among the inputs, in their order."""
        return tuple(i for i in self.inputs if i.reference)


NO_COMPANIONS = WantedCompanions()


def prompt_example(prompt: SourceImage, concept_number: int, source: Path, sizes: tuple[Size, ...]) -> Example:
    """Return a prompt as an example: nothing is resized or cropped at any of its sizes."""
    return Example(
        replace(prompt, width_px=sizes[0].width_px, height_px=sizes[0].height_px),
        concept_number,
        tuple(ResizeCrop(size, size, 0, 0) for size in sizes),
        place=_place_within(source, prompt.folder),
    )


CONDITIONING_COLUMNS = "image.conditioning_columns"
"""The setting of a concept that names the columns of its reference images."""


@dataclass(eq=False)
class Assignment:
    """The assignment of the images of one concept to buckets. Equal sizes share one assignment."""

    concept_number: int
    concept: Concept
    folder: Path
    rules: BucketRules
    sizes: tuple[tuple[Size, ...], ...]
    wanted: WantedCompanions
    _known: dict[Size, tuple[ResizeCrop, ...]] = field(default_factory=dict)
    _places: dict[Path, str] = field(default_factory=dict)

    def example(self, image: SourceImage) -> Example:
        """Return an image with its companions and its buckets; one that is cropped to its mask has one of its shape.

        Raises BrokenImageError for an unreadable companion, ValueError with the reason for an image that is too small.
        """
        settings, mask = self.concept.image, None
        if self.wanted.masks or settings.mask_rotate_crop:
            mask = self._mask(image)
        size = image.size
        box = box_of_mask(mask, size) if mask is not None and settings.mask_rotate_crop else None
        background = colour_of(self.concept.background) or WHITE
        rejected = image.rejected
        if rejected is not None:
            self.rules.require_min_side(rejected.size)
        return Example(
            image,
            self.concept_number,
            self._resize_crops(size, box),
            background=background if image.is_transparent else None,
            place=self._place(image),
            mask=mask,
            mask_box=box,
            input_files=self._input_files(image) if self.wanted.inputs else NO_INPUTS,
            rejected_background=background if rejected is not None and rejected.is_transparent else None,
        )

    def missing_columns(self) -> list[SkippedEntry]:
        """Return the metadata files of the assigned images that lack a column which names reference images."""
        if not self.wanted.references:
            return []
        missing = self._columns.missing_columns() if self._columns else []
        return [replace(entry, setting=CONDITIONING_COLUMNS) for entry in missing]

    def _mask(self, image: SourceImage) -> Companion | None:
        settings = self.concept.image
        if settings.mask_source == "alpha":
            size = image.size
            return Companion(image.path, size, image.size_bytes, image.mtime_ns, is_alpha=True)
        masks_folder = from_root(settings.masks_folder) if settings.mask_source == "folder" else None
        return find_mask(image.path, folder=self.folder, masks_folder=masks_folder)

    def _input_files(self, image: SourceImage) -> dict[str, Companion]:
        folders = self.concept.image.conditioning_folders
        files = {
            i.name: file
            for i in self.wanted.inputs
            if i.suffix and not i.reference and (file := self._input_file(image, i.suffix, folders[0]))
        }
        if not (references := self.wanted.references):
            return files
        if self._columns:
            reference_files = self._named_files(self._columns, image, folders, most=len(references))
        else:
            places = zip(references, folders, strict=False)  # some models read one
            candidates = (self._input_file(image, i.suffix, inputs_folder) for i, inputs_folder in places)
            reference_files = [file for file in candidates if file is not None]
        return files | {i.name: file for i, file in zip(references, reference_files, strict=False)}

    def _input_file(self, image: SourceImage, suffix: str, inputs_folder: Path | None) -> Companion | None:
        return find_input_file(image.path, suffix, folder=self.folder, inputs_folder=inputs_folder)

    def _named_files(
        self, columns: MetadataCaptions, image: SourceImage, folders: Sequence[Path | None], *, most: int
    ) -> list[Companion]:
        """Return the reference images that the columns of metadata files name for an image, without empty cells.

        Raises BrokenImageError for one that is not there, or for more than `most`.
        """
        chosen, named = [folder for folder in folders if folder is not None], list[Companion]()
        row = columns.cells_of(image.path)
        for number, names in enumerate(row.cells):
            folder = folders[number] if number < len(folders) else None
            start = (folder,) if folder is not None else (row.folder, self.folder)
            for name in names:
                named.append(named_file(name, start, (row.folder, self.folder, *chosen), image=image.path))
        if len(named) > most:
            reason = f"its row names {len(named)} reference images, and the model gets at most {most}"
            raise BrokenImageError(image.path, reason)
        return named

    @cached_property
    def _columns(self) -> MetadataCaptions | None:
        """The columns that name reference images; None without any."""
        origin, columns = self.concept.caption_origin, self.concept.image.conditioning_columns.split(",")
        file, named = origin.file if origin.source == "metadata" else None, [c.strip() for c in columns if c.strip()]
        return MetadataCaptions(self.folder, file=file, columns=named) if named else None

    def _resize_crops(self, size: Size, box: Box | None) -> tuple[ResizeCrop, ...]:
        known = self._known.get(size) if box is None else None
        if known is None:
            angles = angles_of(self.concept.image, has_mask_box=box is not None)
            known = self.rules.resize_crops(size, self.sizes, part=box.size if box else None, angles=angles)
            if box is None:
                self._known[size] = known
        return known

    def _place(self, image: SourceImage) -> str:
        """Return the folder of an image within the concept's, or the name of an image elsewhere."""
        place = self._places.get(image.folder)
        if place is not None:
            return place
        if image.folder.is_relative_to(self.folder):
            self._places[image.folder] = _place_within(self.folder, image.folder)
            return self._places[image.folder]
        path = image.path
        name = path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else path.name
        return "" if name == image.file_name else name


def _place_within(source: Path, folder: Path) -> str:
    """Return the path of a folder within a source, with slashes and one at its end; empty for the source itself."""
    below = folder.relative_to(source)
    return f"{below.as_posix()}/" if below.parts else ""
