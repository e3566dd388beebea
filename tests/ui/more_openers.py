"""Openers of the windows that take more to open: those of tools, of machines, and of comparisons of runs."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ui
from tests.ui.conftest import Window
from tests.ui.test_checkpoints import write_checkpoints, write_images
from trainer.run_folder.records import read_record
from ui.features.checkpoints.model import CheckpointTable
from ui.features.checkpoints.vote import BlindVote, VoteWindow
from ui.features.checkpoints.window import open_checkpoints
from ui.features.packages import open_install
from ui.features.presets.model import preset_rows
from ui.features.presets.window import PresetComparison
from ui.features.remote.rent_window import RentWindow
from ui.features.runs.fork_window import ForkWindow
from ui.features.space import SpaceWindow

BY_ACTION = (
    "about", "all_captions", "bundle", "fit", "keys", "machines", "manage_presets", "other_family", "probe",
    "web_page", "which_method",
)  # fmt: skip
"""The actions that open a window and need nothing for it."""
CONCEPT_TABS = ("General", "Augmentation", "Text", "Statistics", "Doctor")
_BASES = {"Window", "Dialog", "SearchWindow", "ItemEditor"}


class SilentChild(io.StringIO):
    """A child process that ends at once."""

    def __init__(self) -> None:
        super().__init__()
        self.stdin, self.stdout = self, []

    def wait(self, timeout: float | None = None) -> int:
        return 1


def more_openers(window: Window, tmp_path: Path) -> dict[str, Callable[[], object]]:
    """Return the functions that open these windows, by their names."""
    context = window.app.context
    run_dir = write_checkpoints(tmp_path / "other", destination=tmp_path / "models" / "zog.safetensors")
    table = CheckpointTable((write_images(run_dir),))
    rows = preset_rows(context.documents.presets())

    def concept_tab(title: str) -> None:
        pages = window.open_page("concepts")
        pages.edit(0).show(title)  # type: ignore[attr-defined]

    def settled(open_it: Callable[[], Any]) -> Callable[[], object]:
        def opened() -> None:
            open_it()
            window.settle()

        return opened

    return {
        **{name: settled(partial(context.actions.run, name)) for name in BY_ACTION},
        **{f"concept {title}": settled(partial(concept_tab, title)) for title in CONCEPT_TABS},
        "vote": lambda: VoteWindow(context, BlindVote(table, table.rows, 1.0, seed=1), print),
        "checkpoints": settled(lambda: open_checkpoints(context, (run_dir,))),
        "install": lambda: open_install(context, ("onnxruntime",), print, spawn=lambda _a, _e: SilentChild()),
        "rent": settled(lambda: RentWindow(context)),
        "fork": settled(lambda: ForkWindow(context, read_record(run_dir))),
        "space": settled(lambda: SpaceWindow(context)),
        "comparison of presets": lambda: PresetComparison(context, rows[0], rows[1]),
    }


def window_classes() -> set[str]:
    """Return the names of all classes of windows and dialogs of the program."""
    found = set()
    for file in Path(ui.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and _BASES & {b.id for b in node.bases if isinstance(b, ast.Name)}:
                found.add(node.name)
    return found - _BASES
