"""The files that the caption editor edits: the open image's caption and mask, the list of images, and saving.

The rule: caption and mask are saved when another image is opened and when the editor closes. A file that another
program changed meanwhile is never overwritten without asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from modules.data.captions.caption_file import CaptionFile
from modules.data.decode import flatten
from modules.data.images import open_image, upright
from modules.system.atomic import write_bytes
from ui.features.captions.document import CaptionDocument, ConflictError, DiskState
from ui.features.captions.image_set import ImageSet, Source
from ui.features.captions.mask_document import MaskDocument
from ui.features.captions.viewport import ScaledImage
from ui.loop.interaction import Answer, Interaction

Part = Literal["caption", "mask"]


@dataclass(frozen=True, slots=True)
class SaveFailure:
    """Why the caption or the mask could not be saved; without a `reason`, another program changed the file."""

    part: Part
    file: Path
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """An image as it is shown, and its mask; `problem` is why the mask cannot be edited."""

    image: ScaledImage
    mask: MaskDocument | None
    problem: str = ""


def load_image(image: Path, masks: Sequence[Path]) -> LoadedImage:
    """Return an image with its mask; for a background thread. Raises BrokenImageError if it cannot be read.

    `masks` are the paths at which its mask may lie; it is written to the first.
    """
    with open_image(image) as raw:
        rgb: Image.Image = flatten(upright(raw))
    scaled = ScaledImage(rgb)
    try:
        return LoadedImage(scaled, MaskDocument(masks, *rgb.size))
    except OSError as error:
        return LoadedImage(scaled, None, str(error))


class EditorSession:
    """The state of an editor. Captions and masks that were edited keep their histories while it is open."""

    def __init__(self, source: Source) -> None:
        self.set = ImageSet(source)
        self.images: tuple[Path, ...] = ()
        """Those that are listed."""
        self.current: Path | None = None
        self.caption: CaptionDocument | None = None
        self.caption_problem = ""
        self.mask: MaskDocument | None = None
        self._places: dict[Path, int] = {}  # of the listed images
        self._captions: dict[Path, CaptionDocument] = {}
        self._masks: dict[Path, MaskDocument] = {}

    @property
    def index(self) -> int:
        """The place of the open image in the list; -1 if it is not listed."""
        return self._places.get(self.current, -1) if self.current is not None else -1

    @property
    def is_edited(self) -> bool:
        """Whether anything is not saved yet."""
        has_caption = self.caption is not None and self.caption.is_edited
        return has_caption or (self.mask is not None and self.mask.is_edited)

    def list_images(self, images: ImageSet) -> None:
        """Show the images that were read."""
        self.set = images
        self.show_images(images.images)

    def show_images(self, images: tuple[Path, ...]) -> None:
        """List a part of the images; the open one stays open."""
        self.images = images
        self._places = {image: place for place, image in enumerate(images)}

    def save(self) -> tuple[SaveFailure, ...]:
        """Save what was edited; return what could not be saved."""
        unsaved = []
        if self.caption is not None:
            unsaved += self._save_document("caption", self.caption)
        if self.mask is not None:
            self.mask.end_stroke()
            unsaved += self._save_document("mask", self.mask)
        self._note_files()
        return tuple(unsaved)

    def open(self, image: Path) -> None:
        """Open the caption of another image; the last one must be saved. Its mask follows with `attach`."""
        self.close()
        self.current = image
        path = self.set.source.caption_of(image)
        self.caption_problem = ""
        try:
            self.caption = self._captions.pop(path, None)
            if self.caption is not None:
                self.caption.look_at_disk()
            else:
                self.caption = CaptionDocument(path)
        except (OSError, ValueError) as error:
            self.caption = None
            reason = getattr(error, "strerror", None) or error
            self.caption_problem = f"{path.name} cannot be read: {reason}"
            return
        if not self.caption.file.is_editable:
            self.caption_problem = f"{path.name} is not valid text; it is shown, but cannot be edited here."

    def attach(self, loaded: LoadedImage) -> None:
        """Add the mask of the open image; one that was edited before comes with its history."""
        self.mask = loaded.mask
        earlier = self._masks.pop(loaded.mask.path, None) if loaded.mask is not None else None
        if earlier is not None and earlier.unpark():
            self.mask = earlier

    def close(self) -> None:
        """Close the open image; what is not saved is dropped."""
        if self.caption is not None and self.caption.differs_from_first and not self.caption.is_edited:
            self._captions[self.caption.path] = self.caption
        if self.mask is not None and (self.mask.can_undo or self.mask.can_redo) and not self.mask.is_edited:
            self.mask.park()
            self._masks[self.mask.path] = self.mask
        self.current = self.caption = self.mask = None

    def look_at_disk(self) -> DiskState:
        """Read the open caption again, as another program may have written it."""
        try:
            state = self.caption.look_at_disk() if self.caption is not None else "same"
        except OSError:
            return "same"  # reported when it is saved
        if state == "reloaded":
            self._note_files()
        return state

    @property
    def has_other_mask(self) -> bool:
        """Whether another program wrote the mask, and nothing was drawn here since."""
        mask = self.mask
        return mask is not None and not mask.is_edited and mask.has_other_file()

    def keep_mine(self, unsaved: SaveFailure) -> None:
        """Write over the file of another program; its caption can be reverted to. Raises OSError."""
        if unsaved.part == "caption" and self.caption is not None:
            self.caption.keep_mine()
        elif unsaved.part == "mask" and self.mask is not None:
            self.mask.overwrite()
        self._note_files()

    def discard(self, unsaved: SaveFailure) -> None:
        """Give up the edits of the caption or the mask, for the file of another program or one that stays."""
        if unsaved.part == "mask":
            self.mask = None
        elif self.caption is not None:
            try:
                self.caption.take_theirs()
            except OSError:
                self.caption = None
        self._note_files()

    def rescue(self, unsaved: SaveFailure, folder: Path) -> Path | None:
        """Write the edited caption or mask elsewhere, because the window closes without asking; return the file."""
        place = folder / unsaved.file.name
        if unsaved.part == "caption" and self.caption is not None:
            write_bytes(place, self.caption.text.encode("utf-8"))
            return place
        if self.mask is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(self.mask.pixels).save(place)
            return place
        return None

    def note_texts(self, texts: dict[Path, str]) -> None:
        """Use the new texts of caption files that find and replace wrote."""
        by_file = {file: image for image, file in self.set.captions.items() if file in texts}
        self.set = self.set.with_texts({by_file[file]: text for file, text in texts.items() if file in by_file})
        self.look_at_disk()

    def _note_files(self) -> None:
        """Update the list's facts about the open image."""
        if self.current is None:
            return
        if self.caption is not None:
            file: CaptionFile = self.caption.file
            if file.text != self.set.text_of(self.current):
                self.set = self.set.with_texts({self.current: None if file.content is None else file.text})
        if self.mask is not None and self.mask.path.is_file() and self.current not in self.set.masked:
            self.set = self.set.with_mask(self.current)

    def _save_document(self, part: Part, document: CaptionDocument | MaskDocument) -> list[SaveFailure]:
        try:
            document.save()
        except ConflictError:
            return [SaveFailure(part, document.path)]
        except (OSError, ValueError) as error:
            return [SaveFailure(part, document.path, getattr(error, "strerror", None) or str(error))]
        return []


Choice = Literal["stay", "discard", "mine"]
_BLOCKED = (Answer("stay", "Stay here", is_default=True), Answer("discard", "Discard my changes"))
_CHANGED = (
    Answer("stay", "Stay here"),
    Answer("discard", "Use the file"),
    Answer("mine", "Keep mine", is_default=True),
)


def ask_about(interaction: Interaction, unsaved: SaveFailure, reason: str) -> Choice:
    """Ask what to do with a file; `reason` is why it cannot be written, "" if another program changed it."""
    answers: Sequence[Answer] = _BLOCKED if reason else _CHANGED
    name = unsaved.file.name
    message = f"{name} was changed by another program while you edited it here."
    if reason:
        message = f"{name} cannot be written: {reason}. Free it and save again, or discard your changes."
    match interaction.choose("Not saved", message, answers, "warning"):
        case "discard":
            return "discard"
        case "mine":
            return "mine"
        case _:
            return "stay"
