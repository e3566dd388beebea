"""The state of the caption editor: its folders, the listed images, and the open image with its caption and mask.

Folders and images are read in the background. Whoever changes the open image goes through `settle`, which saves what
was edited, and asks about what cannot be saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from modules.data.transforms.geometry import Box
from ui.features.captions.image_set import ImageSet, ListFilter, Source, read_images
from ui.features.captions.session import EditorSession, LoadedImage, SaveFailure, ask_about, load_image
from ui.features.captions.viewport import ScaledImage
from ui.loop.background import Background, Job, cancel
from ui.loop.interaction import Interaction
from ui.loop.signal import Signal

_MAX_AT_ONCE = 2000  # images that are searched without a background job
NO_IMAGES = "This folder contains no image files."


class CaptionModel:
    """The signals tell the window what to draw anew; after `changed`, nothing but the state of its buttons."""

    def __init__(
        self, sources: Mapping[str, Source], chosen: str, background: Background, interaction: Interaction
    ) -> None:
        self.sources = dict(sources)  # by the names under which they can be chosen
        self.source_name = chosen
        self.session = EditorSession(self.sources[chosen])
        self.image: ScaledImage | None = None  # the open one, once it is loaded
        self.message = ""  # in place of the image
        self.note = ""  # below the caption
        self.is_reading = False  # a folder that was just chosen
        self.sources_changed: Signal[[]] = Signal()
        self.list_changed: Signal[[]] = Signal()
        self.image_opened: Signal[[]] = Signal()  # it is loaded later
        self.image_changed: Signal[[]] = Signal()  # the image, or the message in its place
        self.caption_changed: Signal[[bool]] = Signal()  # other than by the user; True: it can be undone
        self.mask_changed: Signal[[Box | None]] = Signal()  # the part that changed
        self.saved: Signal[[]] = Signal()
        self.changed: Signal[[]] = Signal()
        self._background = background
        self._interaction = interaction
        self._selection: tuple[ListFilter, str] = ("all", "")
        self._loading: Job | None = None
        self._reading: Job | None = None
        self._selecting: Job | None = None
        self._is_asking = False
        self._is_closed = False
        self._wanted: Path | None = None  # the image to open, once the folder is read

    # -- folders

    def read(self) -> None:
        """Read the folder."""
        self.is_reading = True
        self.note = self.session.set.source.note
        self._show_message("")
        self.list_changed()
        cancel(self._reading)
        self._reading = None
        self.read_again()

    def read_again(self) -> None:
        """Read the folder again while the list stays."""
        if self._reading is None:
            work = partial(read_images, self.session.set.source)
            self._reading = self._background.run(work, self._keep_images, self._report_unreadable)

    def open_source(self, name: str) -> None:
        """Edit another source; what is open is saved first."""
        if self.settle():
            self.source_name = name
            self.session.close()
            self.session.list_images(ImageSet(self.sources[name]))
            self._show_caption()
            self.read()
        self.sources_changed()

    def open_folder(self, folder: Path) -> None:
        """Edit any folder; it stays in the choice."""
        self.sources[str(folder)] = Source(folder, folder.name or str(folder))
        self.open_source(str(folder))

    def open_concepts(self, sources: Mapping[str, Source], chosen: str) -> None:
        """Edit a concept of the config as it is now; other folders stay in the choice."""
        others = {name: source for name, source in self.sources.items() if not name.startswith("concept ")}
        has_changed = self.sources.get(chosen) != sources.get(chosen)
        self.sources = {**sources, **others}
        self.sources_changed()
        if chosen in self.sources and (chosen != self.source_name or has_changed):
            self.open_source(chosen)

    def select(self, which: ListFilter, search: str) -> None:
        """List the images of a choice and a search; a large folder is searched in the background."""
        self._selection = (which, search)
        cancel(self._selecting)
        images = self.session.set
        if len(images.images) <= _MAX_AT_ONCE:
            self._show_selected(images.filter_images(which, search))
        else:
            work = partial(images.filter_images, which, search)
            self._selecting = self._background.run(work, self._show_selected)

    def _keep_images(self, images: ImageSet) -> None:
        self._reading, self.is_reading = None, False
        current = self.session.current
        self.session.list_images(images)
        self.select(*self._selection)
        if current is None and images.images:
            self._open(images.images[0])
        elif not images.images:
            self._show_message(NO_IMAGES)
        self._open_wanted()
        if number := images.num_in_archives:
            self.note = f"{number:,} images in archives are not listed: nothing can be written next to them."
        self.list_changed()
        self.changed()

    def _report_unreadable(self, error: Exception) -> None:
        self._reading, self.is_reading = None, False
        reason = getattr(error, "strerror", None) or str(error)
        self._show_message(f"{self.session.set.source.folder} cannot be read: {reason}")
        self.list_changed()

    def _show_selected(self, images: tuple[Path, ...]) -> None:
        self._selecting = None
        self.session.show_images(images)
        self.list_changed()

    # -- the open image

    def show_image(self, image: Path) -> None:
        """Open an image of the folder; if that is being read, afterwards."""
        self._wanted = image
        if not self.is_reading:
            self._open_wanted()

    def _open_wanted(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is None or wanted == self.session.current or wanted not in self.session.set.captions:
            return
        if self.settle():
            self._open(wanted)

    def go_to(self, index: int) -> None:
        """Open an image of the list, after saving the last one."""
        session = self.session
        if 0 <= index < len(session.images) and session.images[index] != session.current and self.settle():
            self._open(session.images[index])

    def step(self, by: int) -> None:
        """Open the next or the previous image of the list."""
        session = self.session
        if session.images:
            self.go_to(min(len(session.images) - 1, max(0, session.index + by)) if session.index >= 0 else 0)

    def edit_caption(self, text: str) -> None:
        """Set the caption to what the user typed."""
        if self.session.caption is not None:
            self.session.caption.edit(text)
        self.changed()

    def revert(self) -> None:
        """Return to the caption as it was when the image was opened."""
        if self.session.caption is not None:
            self.session.caption.revert()
            self._show_caption(keeps_undo=True)

    def undo_mask(self) -> None:
        """Undo the last step of the mask."""
        if self.session.mask is not None:
            self.mask_changed(self.session.mask.undo())
            self.changed()

    def redo_mask(self) -> None:
        """Redo the last step of the mask that was undone."""
        if self.session.mask is not None:
            self.mask_changed(self.session.mask.redo())
            self.changed()

    def _open(self, image: Path) -> None:
        self.session.open(image)
        self._show_caption()
        self.image_opened()
        self._load()

    def _load(self) -> None:
        """Load the open image with its mask in the background."""
        image = self.session.current
        cancel(self._loading)
        if image is not None:
            self.image = None
            self.changed()
            work = partial(load_image, image, self.session.set.source.masks_of(image))
            self._loading = self._background.run(work, self._show_image, self._report_unloadable)

    def _show_image(self, loaded: LoadedImage) -> None:
        self._loading = None
        self.session.attach(loaded)
        self.image, self.message = loaded.image, ""
        if loaded.problem:
            self.note = f"The mask cannot be edited: {loaded.problem}"
        self.image_changed()
        self.changed()

    def _report_unloadable(self, error: Exception) -> None:
        self._loading = None
        self._show_message(f"This image cannot be shown: {error}")

    def _show_message(self, message: str) -> None:
        self.image, self.message = None, message
        self.image_changed()
        self.changed()

    def _show_caption(self, *, keeps_undo: bool = False) -> None:
        if not keeps_undo:
            self.note = self.session.set.source.note
        self.caption_changed(keeps_undo)
        self.changed()

    # -- files

    def settle(self) -> bool:
        """Save what was edited, and ask about what cannot be saved; return whether nothing is left to save."""
        if self._is_asking:
            return False
        self._is_asking = True
        try:
            is_settled = all(self._settle(unsaved) for unsaved in self.session.save())
        finally:
            self._is_asking = False
        if is_settled:
            self.saved()
            self.changed()
        return is_settled

    def _settle(self, unsaved: SaveFailure) -> bool:
        reason = unsaved.reason
        while True:
            choice = ask_about(self._interaction, unsaved, reason)
            if self._is_closed or choice == "stay":
                return False
            if choice == "discard":
                self.session.discard(unsaved)
                self._show_caption()
                self._load()
                return True
            try:
                self.session.keep_mine(unsaved)
            except OSError as error:
                reason = error.strerror or str(error)
                continue
            self._show_caption(keeps_undo=True)
            return True

    def look_at_files(self) -> None:
        """Read the open image's files again, unless they were edited here: another program may have changed them."""
        if self._is_asking:
            return
        state = self.session.look_at_disk()
        if state == "reloaded":
            self._show_caption()
        elif state == "conflict" and self.session.caption is not None:
            self.note = f"{self.session.caption.path.name} was changed by another program. Saving asks first."
            self.changed()
        if self.session.has_other_mask:
            self._load()

    def note_texts(self, texts: dict[Path, str]) -> None:
        """Use the new texts of caption files that find and replace wrote."""
        self.session.note_texts(texts)
        self._show_caption()
        self.list_changed()

    def close(self, drafts: Path) -> None:
        """Save what is left without asking; what cannot be saved is written to a folder of drafts."""
        self._is_closed = True
        for unsaved in self.session.save():
            self.session.rescue(unsaved, drafts)
        self.session.close()
        cancel(self._loading, self._reading, self._selecting)
