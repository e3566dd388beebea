"""Opening the caption and mask editor, or the window of automatic captions: for a concept, or for any folder."""

from __future__ import annotations

from pathlib import Path

from modules.data.concept import Concept
from modules.data.hub import HubDataset
from ui.features.captions.all_captions_window import AllCaptionsWindow
from ui.features.captions.annotate_window import AnnotateWindow
from ui.features.captions.editor import CaptionEditor
from ui.features.captions.image_set import Source, source_of
from ui.forms import items
from ui.forms.context import Context
from ui.widgets.dialog import bring_to_front


def open_caption_editor(
    context: Context, concept_index: int | None = None, image: Path | None = None
) -> CaptionEditor | None:
    """Open the editor for a concept of the config, or for its first one, at an image; without any, ask for a folder.

    An open editor is shown again. Return it, or None if no folder was chosen.
    """
    sources = _sources(context)
    chosen = f"concept {concept_index}" if concept_index is not None else next(iter(sources), "")
    editor = bring_to_front(context.root, CaptionEditor)
    if editor is not None and concept_index is not None:
        editor.model.open_concepts(sources, chosen)
    elif editor is None and chosen not in sources:
        other = _ask_folder(context, "Edit the captions and masks of a folder")
        if other is None:
            return None
        chosen = str(other.folder)
        sources[chosen] = other
    editor = editor or CaptionEditor(context, sources, chosen)
    if image is not None:
        editor.model.show_image(image)
    return editor


def open_all_captions(context: Context) -> AllCaptionsWindow | None:
    """Open the window with all captions of the first concept; without any, ask for a folder.

    One that is open is shown again.
    """
    if (window := bring_to_front(context.root, AllCaptionsWindow)) is not None:
        return window
    sources = _sources(context)
    if not sources:
        other = _ask_folder(context, "Edit the captions of a folder")
        if other is None:
            return None
        sources[str(other.folder)] = other
    return AllCaptionsWindow(context, sources, next(iter(sources)))


def open_automatic_captions(context: Context, concept: Concept | None = None) -> AnnotateWindow | None:
    """Open the window of automatic captions for a concept, or for the first one; without any, ask for a folder.

    One that is open is shown again, unless it is for another concept and writes nothing at the moment.
    """
    source = source_of(concept) if concept is not None else None
    if (window := bring_to_front(context.root, AnnotateWindow)) is not None:
        if source is None or source == window.source or window.runner.state.is_active:
            return window
        window.close()
    source = source or next(iter(_sources(context).values()), None)
    source = source or _ask_folder(context, "Write captions for the images of a folder")
    return None if source is None else AnnotateWindow(context.root, context, source, is_for_masks=False)


def _sources(context: Context) -> dict[str, Source]:
    """Return the folders of the concepts whose captions can be edited."""
    concepts: list[Concept] = list(items.items_of(context.form, "concepts"))  # type: ignore[arg-type]
    return {
        f"concept {i}": source_of(c)
        for i, c in enumerate(concepts)
        if c.has_images and c.path and HubDataset.of(c.path) is None
    }


def _ask_folder(context: Context, title: str) -> Source | None:
    folder = context.interaction.ask_folder(title, context.preferences.last_folder)
    return None if folder is None else Source(folder, folder.name or str(folder))
