"""Images that a widget shows: loaded in the background, and kept as Tk's photos."""

from __future__ import annotations

import tkinter as tk
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image, ImageTk

from ui.loop.background import Job
from ui.loop.pump import Pump
from ui.widgets.thumbnails import load_fitted

Key = tuple[Hashable, int]  # an image, usually its path, at a size, usually the side of its square
Load = Callable[[Any, int], Image.Image]


def fitted_into_square(path: Path, side_px: int) -> Image.Image:
    """Return an image fitted into a square; a small one is enlarged."""
    return load_fitted(path, side_px, side_px, enlarge="smooth")


class Photos:
    """The photos of a widget, which is redrawn as they arrive. The `most` that were used last are kept.

    `load` returns the image of a key on a background thread; it raises OSError for an unreadable one.
    """

    def __init__(
        self,
        owner: tk.Misc,
        pump: Pump,
        redraw: Callable[[], None],
        *,
        most: int,
        load: Load = fitted_into_square,
    ) -> None:
        self._owner, self._pump, self._redraw, self._most, self._load = owner, pump, redraw, most, load
        self._photos: OrderedDict[Key, ImageTk.PhotoImage | None] = OrderedDict()
        self._jobs: dict[Key, Job] = {}

    def __contains__(self, key: Key) -> bool:
        """Return whether an image is loaded, or known to be unreadable."""
        return key in self._photos

    @property
    def loaded(self) -> Mapping[Key, ImageTk.PhotoImage | None]:
        """The photos; None for an image that is unreadable."""
        return self._photos

    def get(self, key: Key) -> ImageTk.PhotoImage | None:
        """Return the photo of an image; None if it is not loaded yet, or unreadable."""
        if key in self._photos:
            self._photos.move_to_end(key)
        return self._photos.get(key)

    def load(self, key: Key) -> None:
        """Load an image in the background, unless that is done or under way."""
        if key not in self._jobs and key not in self._photos:
            work = partial(self._load, *key)
            done, failed = partial(self._loaded, key), partial(self._could_not_load, key)
            self._jobs[key] = self._pump.background.run(work, done, failed)

    def load_only(self, keys: Collection[Key]) -> None:
        """Cancel the loading of other images: they are no longer in sight."""
        for key in [k for k in self._jobs if k not in keys]:
            self._jobs.pop(key).cancel()

    def keep_only(self, paths: Collection[Hashable]) -> None:
        """Forget all other images, and cancel their loading."""
        for key in [k for k in self._jobs if k[0] not in paths]:
            self._jobs.pop(key).cancel()
        for key in [k for k in self._photos if k[0] not in paths]:
            del self._photos[key]

    def close(self) -> None:
        """Forget everything, on the Tk thread and not on the garbage collector's."""
        self.keep_only(())

    def _loaded(self, key: Key, image: Image.Image) -> None:
        self._keep(key, ImageTk.PhotoImage(image, master=self._owner))

    def _could_not_load(self, key: Key, _error: Exception) -> None:
        self._keep(key, None)

    def _keep(self, key: Key, photo: ImageTk.PhotoImage | None) -> None:
        self._jobs.pop(key, None)
        self._photos[key] = photo
        while len(self._photos) > self._most:
            self._photos.popitem(last=False)
        self._redraw()
