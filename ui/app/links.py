"""What features open of each other: their windows are imported when they are first opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from modules.system.factories import load_factory
from ui.features.presets.menu import add_presets
from ui.forms.context import Context, FeatureLinks

_CAPTIONS, _CONFIG = "ui.features.captions.opening", "ui.features.config_views.differences"


def feature_links(context: Callable[[], Context], *, show_run: Callable[[Path], None]) -> FeatureLinks:
    """Return the links; `context()` is the window's, which has them."""
    return FeatureLinks(
        edit_captions=lambda number: load_factory(f"{_CAPTIONS}:open_caption_editor")(context(), number),
        write_captions=lambda concept: load_factory(f"{_CAPTIONS}:open_automatic_captions")(context(), concept),
        show_run=show_run,
        show_run_changes=lambda: load_factory(f"{_CONFIG}:open_differences")(context(), "run"),
        add_presets=lambda menu, presets, choose: add_presets(menu, context(), presets, choose),
    )
