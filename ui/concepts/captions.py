"""The captions of concepts: how many images have one, and the windows in which they are written. No Tk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from modules.data.concept import Concept
from modules.system.paths import from_root

if TYPE_CHECKING:
    from ui.context import Context
    from ui.files.listing import Counts

LABEL = "Captions and masks…"


def edit_captions(context: Context, number: int) -> None:
    """Open the editor for the concept at a number."""
    from ui.editors.captions.opening import open_caption_editor  # needs NumPy, which the window starts without

    open_caption_editor(context, number)


def write_captions(context: Context, concept: Concept | None = None) -> None:
    """Open the window in which a model writes captions, for a concept or the first one."""
    from ui.editors.captions.opening import open_automatic_captions  # needs NumPy

    open_automatic_captions(context, concept)


def count_captions(concepts: Iterable[Concept]) -> Counts:
    """Return how many images the folders have, and how many of them a caption file. For a background thread.

    Images in archives are left out, and so are folders that cannot be listed.
    """
    from modules.data.archives import archive_of
    from modules.data.listing import list_images
    from ui.files.listing import Counts

    num_images = num_captions = 0
    for concept in concepts:
        try:
            found = list_images(from_root(concept.path), include_subfolders=concept.include_subfolders).images
        except OSError:
            continue
        images = [image for image in found if archive_of(image) is None]
        num_images += len(images)
        num_captions += sum(image.with_suffix(concept.caption_extension).is_file() for image in images)
    return Counts(num_images, num_captions)
