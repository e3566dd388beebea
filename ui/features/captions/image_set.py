"""The images of a folder with their captions: listing, filters, and tags with their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from modules.data.archives import archive_of
from modules.data.captions.caption_file import read_caption_file
from modules.data.companions import mask_paths
from modules.data.concept import Concept
from modules.data.links import leads_out
from modules.data.listing import SUFFIXES, list_images
from modules.system.paths import from_root

ListFilter = Literal["all", "no_caption", "caption", "no_mask", "mask"]
LIST_FILTERS: Mapping[ListFilter, str] = {
    "all": "All images",
    "no_caption": "Without a caption",
    "caption": "With a caption",
    "no_mask": "Without a mask",
    "mask": "With a mask",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A folder to edit: how its captions and masks are named. `note` names what the editor does not edit there.

    `has_other_captions` if it is a concept whose captions are not in files next to its images.
    """

    folder: Path
    title: str
    include_subfolders: bool = True
    extension: str = ".txt"
    masks_folder: Path | None = None
    note: str = ""
    has_other_captions: bool = False

    def caption_of(self, image: Path) -> Path:
        """Return the caption file of an image."""
        return image.with_name(image.stem + self.extension)

    def masks_of(self, image: Path) -> tuple[Path, ...]:
        """Return where the mask of an image may lie; the first path is where it is written."""
        return mask_paths(image, folder=self.folder, masks_folder=self.masks_folder)


def source_of(concept: Concept) -> Source:
    """Return the folder of a concept."""
    folder = from_root(concept.path)
    masks = concept.image.masks_folder if concept.image.mask_source == "folder" else ""
    notes = []
    has_other_captions = concept.caption_source != "text_file"
    if has_other_captions:
        notes.append("This concept takes its captions from elsewhere: the text files edited here are not used.")
    if concept.image.mask_source == "alpha":
        notes.append("This concept uses the alpha channel of its images as masks, not the files that are edited here.")
    is_image = folder.suffix.lower() in SUFFIXES  # by its name: all concepts are asked, and a drive may be slow
    return Source(
        folder.parent if is_image else folder,
        concept.name or folder.name,
        concept.include_subfolders,
        concept.caption_extension if concept.caption_source == "text_file" else ".txt",
        from_root(masks) if masks else None,
        " ".join(notes),
        has_other_captions,
    )


@dataclass(frozen=True, slots=True)
class ImageSet:
    """The images of a source, the texts of their caption files, which have masks, and the counts of tags."""

    source: Source
    images: tuple[Path, ...] = ()
    captions: Mapping[Path, Path] = field(default_factory=dict)
    """The caption file of each image, whether it exists or not."""
    texts: Mapping[Path, str] = field(default_factory=dict)
    """By caption file; one that is missing has none."""
    masked: frozenset[Path] = frozenset()
    """The images with a mask."""
    counts: Counter[str] = field(default_factory=Counter)
    num_in_archives: int = 0

    def text_of(self, image: Path) -> str:
        """Return the caption text of an image as it is in its file; empty without one."""
        return self.texts.get(self.captions[image], "") if image in self.captions else ""

    def filter_images(self, which: ListFilter, search: str) -> tuple[Path, ...]:
        """Return the images of a choice whose name or caption contains all the words of a search."""
        terms = search.lower().split()
        if which == "all" and not terms:
            return self.images
        return tuple(image for image in self.images if self._passes(image, which) and self._contains(image, terms))

    def with_texts(self, changed: Mapping[Path, str | None]) -> ImageSet:
        """Return the set after the captions of some images were written; None for one without a file."""
        texts = dict(self.texts)
        old_texts = [texts.pop(self.captions[image], "") for image in changed]
        texts |= {self.captions[image]: text for image, text in changed.items() if text is not None}
        counts = self.counts + tag_counts(text or "" for text in changed.values())  # a new one
        counts.subtract(tag_counts(old_texts))
        return replace(self, texts=texts, counts=+counts)

    def with_mask(self, image: Path) -> ImageSet:
        """Return the set after the mask of an image was written."""
        return replace(self, masked=self.masked | {image})

    def _passes(self, image: Path, which: ListFilter) -> bool:
        match which:
            case "all":
                return True
            case "caption" | "no_caption":
                return bool(self.text_of(image).strip()) == (which == "caption")
            case "mask" | "no_mask":
                return (image in self.masked) == (which == "mask")

    def _contains(self, image: Path, terms: list[str]) -> bool:
        if not terms:
            return True
        text = f"{image.name}\n{self.text_of(image)}".lower()
        return all(word in text for word in terms)


def read_images(source: Source) -> ImageSet:
    """Return the images of a source, with their captions. Raises OSError for a folder that cannot be listed.

    Images in archives are left out: nothing can be written next to them. So are images whose caption or mask is a link
    out of the folder, which editing would change. A caption that cannot be read counts as empty here; the editor
    reports it.
    """
    listed = list_images(source.folder, include_subfolders=source.include_subfolders).images
    images = tuple(image for image in listed if archive_of(image) is None and not _leads_out(source, image))
    captions = {image: source.caption_of(image) for image in images}
    texts = {}
    for path in captions.values():
        try:
            file = read_caption_file(path)
        except (OSError, ValueError):
            continue
        if file.content is not None:
            texts[path] = file.text
    masked = frozenset(image for image in images if any(mask.is_file() for mask in source.masks_of(image)))
    return ImageSet(source, images, captions, texts, masked, tag_counts(texts.values()), len(listed) - len(images))


def _leads_out(source: Source, image: Path) -> bool:
    masks = source.masks_folder or source.folder
    if leads_out(source.caption_of(image), source.folder):
        return True
    return any(leads_out(mask, masks) for mask in source.masks_of(image))


DELIMITER = ","
_MAX_WORDS = 5
_MAX_SUGGESTIONS = 8


def tags_of(line: str) -> tuple[str, ...]:
    """Return the tags of a line, without the spaces around them; empty ones are left out."""
    return tuple(tag for piece in line.split(DELIMITER) if (tag := piece.strip()))


def with_tag(line: str, tag: str) -> str:
    """Return a line with a tag at its end; a tag that it has stays where it is."""
    tag = tag.strip().strip(DELIMITER).strip()
    if not tag or tag in tags_of(line):
        return line
    head = line.rstrip()
    if not head:
        return f"{line}{tag}"
    space = " " if ", " in line or DELIMITER not in line else ""
    joint = f"{DELIMITER}{space}" if not head.endswith(DELIMITER) else space
    return f"{head}{joint}{tag}"


def without_tag(line: str, index: int) -> str:
    """Return a line without one of its tags, and without its delimiter."""
    pieces = line.split(DELIMITER)
    place = _places(pieces)[index]
    indent = pieces[0][: len(pieces[0]) - len(pieces[0].lstrip())]
    del pieces[place]
    if place == 0 and pieces:
        pieces[0] = indent + pieces[0].lstrip()
    return DELIMITER.join(pieces)


def move_tag(line: str, index: int, to: int) -> str:
    """Return a line with one of its tags at another place; the spaces between tags stay where they are."""
    pieces = line.split(DELIMITER)
    places = _places(pieces)
    order = [pieces[place].strip() for place in places]
    order.insert(min(max(0, to), len(order) - 1), order.pop(index))
    for place, tag in zip(places, order, strict=True):
        old = pieces[place]
        pieces[place] = old.replace(old.strip(), tag, 1)
    return DELIMITER.join(pieces)


def line_at(text: str, line: int) -> str:
    """Return a line of a text by its number from 0; empty beyond the last one."""
    lines = text.split("\n")
    return lines[line] if 0 <= line < len(lines) else ""


def line_of_tags(text: str) -> int:
    """Return the number of the line with the most tags; of equal ones the first."""
    lines = text.split("\n")
    return max(range(len(lines)), key=lambda number: (len(tags_of(lines[number])), -number))


def tag_counts(texts: Iterable[str]) -> Counter[str]:
    """Return how often each tag occurs in the captions of a data set; sentences do not count."""
    return Counter(
        tag for text in texts for line in text.split("\n") for tag in tags_of(line) if tag.count(" ") < _MAX_WORDS
    )


def suggestions(typed: str, counts: Counter[str], *, present: Iterable[str] = ()) -> tuple[str, ...]:
    """Return tags of the data set that match a typed text: first those that begin with it, the most frequent first.

    Spaces and underscores are equal. Tags that the line has are left out.
    """
    query = _plain(typed)
    if not query:
        return ()
    present_tags = set(present)
    matches = [
        (not plain.startswith(query), -number, tag)
        for tag, number in counts.items()
        if tag not in present_tags and query in (plain := _plain(tag))
    ]
    return tuple(tag for *_, tag in sorted(matches)[:_MAX_SUGGESTIONS])


def _plain(text: str) -> str:
    return text.strip().lower().replace("_", " ")


def _places(pieces: list[str]) -> list[int]:
    return [place for place, piece in enumerate(pieces) if piece.strip()]
