"""Opening the caption and mask editor: for a concept, or for any folder."""

from __future__ import annotations

from collections.abc import Callable

from modules.data.concept import Concept
from modules.data.hub import HubDataset
from ui.context import Context
from ui.editors.captions.editor import CaptionEditor
from ui.editors.captions.image_set import Source, source_of
from ui.forms import items


def open_caption_editor(
    context: Context, concept_index: int | None = None, *, closed: Callable[[], object] = lambda: None
) -> CaptionEditor | None:
    """Open the editor for a concept of the config, or for its first one; without any, ask for a folder.

    An open editor is shown again. `closed()` is called when it closes. Return it, or None if no folder was chosen.
    """
    concepts: list[Concept] = list(items.items_of(context.form, "concepts"))  # type: ignore[arg-type]
    sources = {
        f"concept {i}": source_of(c)
        for i, c in enumerate(concepts)
        if c.has_images and c.path and HubDataset.of(c.path) is None
    }
    chosen = f"concept {concept_index}" if concept_index is not None else next(iter(sources), "")
    present = [w for w in context.root.winfo_children() if isinstance(w, CaptionEditor)]
    if present:
        if concept_index is not None:
            present[0].open_concepts(sources, chosen)
        present[0].lift()
        present[0].focus_set()
        return present[0]
    if chosen not in sources:
        folder = context.interaction.ask_folder(
            "Edit the captions and masks of a folder", context.preferences.last_folder
        )
        if folder is None:
            return None
        chosen = str(folder)
        sources[chosen] = Source(folder, folder.name or str(folder))
    return CaptionEditor(context, sources, chosen, closed=closed)
