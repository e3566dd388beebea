"""Files that belong to an image: its mask and its conditioning image. Only headers are read.

The names are OneTrainer's: the mask of cat.jpg is cat-masklabel.png, its conditioning image cat-condlabel.png. In a tar
shard the mask may also be a field of the sample, as WebDataset names them: cat.mask.png.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.data.archives import archive_of, status_of
from modules.data.buckets import Size
from modules.data.images import BrokenImageError, open_image, upright, upright_size
from modules.data.inputs import INPUTS, MASK_SUFFIX, REFERENCES
from modules.data.links import LEADS_OUT, leads_out
from modules.data.listing import MASK_FIELD, SUFFIXES, sample_of
from modules.data.transforms.geometry import Box
from modules.data.transforms.masks import alpha_mask, as_mask, white_box
from modules.system.problem import quote


@dataclass(frozen=True, slots=True)
class Companion:
    """A file that belongs to an image, with its size in its EXIF orientation; `is_alpha`: the image's own opacity."""

    path: Path
    size: Size
    size_bytes: int
    mtime_ns: int
    is_alpha: bool = False

    @property
    def path_text(self) -> str:
        """The path as text."""
        return str(self.path)


def mask_path_of(image: Path) -> Path:
    """Return the path at which an image has its mask, if it lies next to it."""
    return image.with_name(f"{image.stem}{MASK_SUFFIX}.png")


def mask_paths(image: Path, *, folder: Path, masks_folder: Path | None) -> tuple[Path, ...]:
    """Return where an image of a concept's `folder` may have its mask as a file, the preferred path first.

    In a masks folder that is the image's path within the concept's folder, with the suffix .png or the image's own. An
    image is never its own mask, so the concept's folder as masks folder is the same as none.
    """
    if masks_folder is None or os.path.realpath(masks_folder) == os.path.realpath(folder):
        return (mask_path_of(image),)
    inside = _path_inside(image, folder)
    return tuple(dict.fromkeys((masks_folder / inside.with_suffix(".png"), masks_folder / inside)))


def is_named_like_mask(file: Path) -> bool:
    """Return whether a file is named like the mask of an image, with any suffix of an image."""
    is_hidden = file.name.startswith(".")
    return file.stem.endswith(MASK_SUFFIX) and file.suffix.lower() in SUFFIXES and not is_hidden


def find_mask(image: Path, *, folder: Path, masks_folder: Path | None = None) -> Companion | None:
    """Return the mask of an image of a concept's `folder`, or None if it has none.

    Raises BrokenImageError for a mask that is not a readable image, or a link out of its folder.
    """
    paths = list(mask_paths(image, folder=folder, masks_folder=masks_folder))
    if masks_folder is None and archive_of(image) is not None:
        sample = sample_of(image)
        paths.append(sample.with_name(f"{sample.name}{MASK_FIELD}"))
    return next((mask for path in paths if (mask := _companion(path, masks_folder or folder))), None)


def find_input_file(image: Path, suffix: str, *, folder: Path, inputs_folder: Path | None = None) -> Companion | None:
    """Return the file of an input (`ModelInput.suffix`) of an image of a concept's `folder`, or None.

    In an inputs folder it is the image with the same path within the folder, with any suffix of an image. Raises
    BrokenImageError if it is not a readable image, or a link out of the folder.
    """
    if inputs_folder is None or os.path.realpath(inputs_folder) == os.path.realpath(folder):
        return _companion(image.with_name(f"{image.stem}{suffix}.png"), folder)
    place = inputs_folder / _path_inside(image, folder)
    suffixes = dict.fromkeys((image.suffix, *sorted(SUFFIXES)))
    return next((file for s in suffixes if (file := _companion(place.with_suffix(s), inputs_folder))), None)


def find_references(image: Path, *, folder: Path, inputs_folders: Sequence[Path | None]) -> tuple[Path, ...]:
    """Return the reference images of an image of a concept's `folder`, by their names alone, in their order.

    `inputs_folders` are the folders of the first, second and third ones; None for files next to the image. Unreadable
    files are left out.
    """
    paths = []
    for name, inputs_folder in zip(REFERENCES, inputs_folders, strict=True):
        try:
            file = find_input_file(image, INPUTS[name].suffix, folder=folder, inputs_folder=inputs_folder)
        except BrokenImageError:
            continue
        paths += [file.path] if file is not None else []
    return tuple(paths)


def named_file(name: str, start: Sequence[Path], allowed: Sequence[Path], *, image: Path) -> Companion:
    """Return the file that a data set names for an image, by its path from a folder, the first of `start` that has it.

    An absolute path must lead into one of the folders `allowed`: a data set of a stranger cannot name any file of the
    machine. Raises BrokenImageError if no folder has it.
    """
    folders = [Path(os.path.normpath(folder)) for folder in (allowed if Path(name).is_absolute() else start)]
    for folder in folders:
        path = Path(os.path.normpath(folder / name.replace("\\", "/")))
        is_inside = any(path.is_relative_to(os.path.normpath(f)) for f in allowed)
        if is_inside and (file := _companion(path, folder)) is not None:
            return file
    where = " or ".join(dict.fromkeys(map(str, folders)))
    raise BrokenImageError(image, f"the reference image {quote(name)} is not in {where}")


def box_of_mask(mask: Companion, image_size: Size) -> Box | None:
    """Return the box around the white of a mask, in pixels of its image; None if it has no white.

    The mask is decoded. Raises BrokenImageError if that fails.
    """
    with open_image(mask.path) as raw:
        whole = upright(raw)
        box = white_box(alpha_mask(whole) if mask.is_alpha else as_mask(whole))
    if box is None or mask.size == image_size:
        return box
    across, down = image_size.width_px / mask.size.width_px, image_size.height_px / mask.size.height_px
    left, top = int(box.left_px * across), int(box.top_px * down)
    right = max(left + 1, round(box.right_px * across))
    return Box(left, top, right, max(top + 1, round(box.bottom_px * down)))


def _path_inside(image: Path, folder: Path) -> Path:
    return image.relative_to(folder) if image.is_relative_to(folder) else Path(image.name)


def _companion(path: Path, folder: Path) -> Companion | None:
    if leads_out(path, folder):
        raise BrokenImageError(path, LEADS_OUT)
    try:
        status = status_of(path)
    except (OSError, ValueError):  # missing, or a name that is not a valid file name
        return None
    if status.size_bytes == 0:
        raise BrokenImageError(path, "an empty file")
    with open_image(path) as image:
        size = Size(*upright_size(image))
    return Companion(path, size, status.size_bytes, status.mtime_ns)
