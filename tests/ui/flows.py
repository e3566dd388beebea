"""`python -m tests.ui.flows [--managed]`: a user's walk through the window, with the real engine and real events.

It needs a display of at least 1100 x 740 of its own, without a window manager; `--managed` starts one. Every step is a
click or keys that the X server sends, and dialogs are answered by a click, too. The user's session is left alone.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import tkinter as tk
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from modules.config.presets import DEMO
from modules.system.paths import PROGRAM_ROOT
from tests.ui.conftest import Window
from tests.ui.driving import inside, walk
from tests.ui.real_input import answer_file_dialog_by_hand, click, keys, xdotool
from tests.ui.recorder import Recorder
from tests.ui.tk_thread import check_threads
from tests.ui.window_managers import managed
from trainer.run_queue.items import Item
from ui.app.side_bar import SIMPLE_VIEW
from ui.app.window import App
from ui.features.captions.editor import CaptionEditor
from ui.features.runs.fork_window import ForkWindow
from ui.forms.setting_pages import SIMPLE
from ui.loop.pump import keep_interpreter_smooth
from ui.widgets.controls import Button
from ui.widgets.dialog import Dialog
from ui.widgets.entry import Entry
from ui.widgets.files.dialog import FileDialog
from ui.widgets.panel import focused_widget
from ui.widgets.theme import Theme
from ui.widgets.window import create_root

_NUM_EPOCHS = 12
_PATIENCE_SECONDS = 600.0
_log = logging.getLogger(__name__)


class Walk:
    """One window, and the ways to use it."""

    def __init__(self, root: tk.Tk, folder: Path) -> None:
        self.folder = folder
        self.app = App(root=root)
        self.window = Window(self.app, None, Recorder())  # type: ignore[arg-type]  # the engine is the real one
        self.errors: list[str] = []
        self.answered: list[str] = []
        self.answers_by_itself = True
        self.app.show()
        root.geometry("1100x740+0+0")
        root.focus_force()
        self.window.settle()
        root.after(100, self._answer)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Run the window until a condition holds."""
        self.window.wait_until(condition, what, patience_seconds=_PATIENCE_SECONDS)

    def click(self, widget: tk.Misc) -> None:
        """Click on a widget, which must be on the screen."""
        self.wait(widget.winfo_viewable, f"{widget} to be visible")
        click(self.window, widget)

    def page(self, key: str) -> Any:
        """Open a page by a click in the side bar."""
        entries = self.app.shell.side_bar.entries
        if key in entries:
            self.click(entries[key])
        else:
            self.app.context.navigation.open(key)  # a tab of another page
        self.wait(lambda: self.app.context.navigation.page == key, f"the page {key}")
        self.window.settle()
        return self.app.shell.pages[key]

    def fill(self, page: Any, path: str, *typed: str) -> None:
        """Type into the entry of a setting."""
        row = next(row for row in page.form_view.rows() if row.record.path == path)
        page.show_field(path)
        entry = inside(row.control.frame, Entry).tk_entry
        self.click(entry)
        keys(self.window, "ctrl+a", *typed, "Tab")

    def type_into_dialog(self, *typed: str) -> None:
        """Press keys once the dialog that opens next has the focus in its entry, and then Return."""
        root = self.app.root
        dialogs = [w for w in root.winfo_children() if isinstance(w, Dialog) and w.winfo_viewable()]
        if dialogs and focused_widget(root) is dialogs[0].first_entry:
            xdotool("key", *typed, "Return")
        else:
            root.after(100, self.type_into_dialog, *typed)

    def choose_folder(self, folder: Path) -> None:
        """Type a folder into the file dialog that opens next; once it is listed, the dialog is answered."""
        self.answers_by_itself = False
        answer_file_dialog_by_hand(self.app.root, str(folder))

        def look() -> None:
            dialogs = [w for w in self.app.root.winfo_children() if isinstance(w, FileDialog)]
            self.answers_by_itself = bool(dialogs) and dialogs[0].browser.folder == folder
            if not self.answers_by_itself:
                self.app.root.after(100, look)

        look()

    def _answer(self) -> None:
        """Click on the first button of a dialog that has been open for a moment: the default one is on the right."""
        root = self.app.root
        found = root.winfo_children() if self.answers_by_itself else []
        for dialog in [w for w in found if isinstance(w, Dialog) and w.winfo_viewable()]:
            button = next(b for b in dialog.buttons.values() if b.style == "primary")
            self.answered.append(dialog.title())
            if "wrong" in dialog.title():
                self.errors.append(dialog.title())
            x, y = button.winfo_rootx() + button.winfo_width() // 2, button.winfo_rooty() + button.winfo_height() // 2
            xdotool("mousemove", str(x), str(y), "click", "1")
        root.after(300, self._answer)


def _open_demo(walk_: Walk, result: str) -> None:
    app = walk_.app
    walk_.click(walk_.page("home").work.buttons["demo"])
    walk_.wait(lambda: app.form.source.name == DEMO and not app.form.is_changed, "the demo")
    for path, name in (
        ("general.workspace_dir", "workspace"),
        ("general.cache_dir", "cache"),
        ("output.destination", result),
    ):
        app.form.edit(path, str(walk_.folder / name))


def demo_from_the_card(walk_: Walk) -> None:
    """Begin with the demo, shorten it, start, edit while it runs, stop, and resume until the end."""
    app, session = walk_.app, walk_.app.context.session
    _open_demo(walk_, "lora.safetensors")
    shutil.copytree(PROGRAM_ROOT / "demo" / "zog", walk_.folder / "zog")
    concepts = app.form.config.concepts
    app.form.edit("concepts", (concepts[0].model_copy(update={"path": str(walk_.folder / "zog")}), *concepts[1:]))
    walk_.fill(walk_.page("training"), "training.epochs", *str(_NUM_EPOCHS))
    assert app.form.config.training.epochs == _NUM_EPOCHS
    walk_.click(app.shell.bottom_bar.start)
    walk_.wait(lambda: session.state.step is not None and session.state.step.step >= 5, "the fifth step")
    walk_.fill(walk_.page("training"), "training.learning_rate", "1", "e", "minus", "4")
    page: Any = walk_.page("run")
    walk_.wait(lambda: page.notices.edits, "the notice of an edit that is not part of the run")
    walk_.click(app.shell.bottom_bar.start)
    walk_.wait(lambda: session.stage == "idle", "the stop")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "stopped"
    walk_.wait(lambda: app.shell.bottom_bar.second.cget("text") == "Resume run", "the offer to resume")
    walk_.click(app.shell.bottom_bar.second)
    walk_.wait(lambda: session.is_active, "the resumed run")
    walk_.wait(lambda: session.stage == "idle", "its end")
    assert session.state.finished.outcome == "finished", session.state


def queue_of_two(walk_: Walk) -> None:
    """Add the config twice, and train both in processes of their own."""
    app, queue = walk_.app, walk_.app.queue
    walk_.fill(walk_.page("training"), "training.epochs", "1")
    page = walk_.page("queue")
    for number in (1, 2):
        walk_.click(page.buttons["add"])
        walk_.wait(lambda number=number: len(queue.queue.items) == number, "the item")  # type: ignore[misc]
    walk_.click(page.buttons["run"])
    walk_.wait(lambda: queue.is_running, "the queue")
    walk_.wait(lambda: not queue.is_running, "its end")
    items: tuple[Item, ...] = queue.queue.items
    assert [item.state for item in items] == ["finished", "finished"], items
    assert app.context.session.stage == "idle"


def fork(walk_: Walk) -> None:
    """Fork the newest run that has a backup, change it, and start it."""
    app, session = walk_.app, walk_.app.context.session
    page = walk_.page("runs")
    walk_.wait(lambda: page.listed_runs, "the runs")
    walk_.window.settle()
    row = str(len(page.listed_runs) - 1)  # the demo's own
    x, y, *_ = (int(edge) for edge in page.table.tree.bbox(row))
    tree = page.table.tree
    xdotool("mousemove", str(tree.winfo_rootx() + x + 30), str(tree.winfo_rooty() + y + 8), "click", "1")
    walk_.wait(lambda: page.table.selected == [int(row)], "the selection")
    walk_.wait(lambda: page.buttons["fork"].cget("state") == "normal", "its backups")
    walk_.click(page.buttons["fork"])
    walk_.wait(lambda: any(isinstance(w, ForkWindow) for w in app.root.winfo_children()), "the window of the fork")
    forking = next(w for w in app.root.winfo_children() if isinstance(w, ForkWindow))
    walk_.wait(lambda: forking.source, "what it can start from")
    walk_.click(forking.load_button)
    walk_.wait(lambda: app.context.navigation.page == "training", "the settings of the fork")
    walk_.fill(app.shell.pages["training"], "training.epochs", *str(_NUM_EPOCHS + 1))
    line = next(line for line in app.shell.notice_bar.lines if "Start" in line.buttons)
    walk_.click(line.buttons["Start"])
    walk_.wait(lambda: session.is_active, "the fork")
    walk_.wait(lambda: session.stage == "idle", "its end")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "finished", session.state
    assert session.state.started is not None
    assert session.state.started.first_step > 0


def captions_and_masks(walk_: Walk) -> None:
    """Edit a caption and draw a mask; both are saved on leaving the image."""
    app, folder = walk_.app, walk_.folder / "zog"
    page = walk_.page("concepts")
    walk_.click(next(w for w in walk(page.frame) if isinstance(w, Button) and w.cget("text").startswith("Captions")))
    walk_.wait(lambda: any(isinstance(w, CaptionEditor) for w in app.root.winfo_children()), "the editor")
    editor = next(w for w in app.root.winfo_children() if isinstance(w, CaptionEditor))
    walk_.wait(lambda: editor.model.session.mask is not None and editor.canvas.image is not None, "the first image")
    walk_.window.settle()
    walk_.click(editor.caption_panel.text)
    keys(walk_.window, "ctrl+End", "comma", "space", "b", "i", "g")
    walk_.click(editor.tool_bar.tools["brush"])
    view, canvas = editor.canvas.viewport, editor.canvas
    left, top = canvas.winfo_rootx() + round(view.left), canvas.winfo_rooty() + round(view.top)
    for action in (("mousemove", "20", "20"), ("mousedown", "1"), ("mousemove", "40", "40"), ("mouseup", "1")):
        at = [str(round(int(n) * view.zoom) + side) for n, side in zip(action[1:], (left, top), strict=False)]
        xdotool("mousemove", *at) if action[0] == "mousemove" else xdotool(*action)
        walk_.window.settle()
    first = editor.model.session.current
    walk_.click(editor.buttons["next"])
    walk_.wait(lambda: editor.model.session.current != first, "the next image")
    assert first is not None
    assert first.with_suffix(".txt").read_text(encoding="utf-8").strip().endswith(", big")
    assert (folder / f"{first.stem}-masklabel.png").is_file()
    keys(walk_.window, "Escape")
    walk_.wait(lambda: not editor.winfo_exists(), "the editor to close")


def simple_page(walk_: Walk) -> None:
    """Train a LoRA on the page of the simple view alone: a folder, one sentence, the length, a prompt, Start."""
    app, session, images = walk_.app, walk_.app.context.session, walk_.folder / "mine"
    images.mkdir()
    for image in sorted((PROGRAM_ROOT / "demo" / "zog").glob("*.png"))[:4]:
        shutil.copy(image, images)
    _open_demo(walk_, "mine.safetensors")
    walk_.click(app.shell.side_bar.views[SIMPLE_VIEW])
    walk_.wait(lambda: app.context.navigation.page == SIMPLE, "the simple page")
    page: Any = app.shell.page(SIMPLE)

    def choose(step: str, choice: str) -> None:
        card = page.cards[step]
        walk_.wait(lambda: choice in card.buttons and card.buttons[choice].winfo_exists(), choice)
        walk_.window.settle()
        page.scroll.see(card.buttons[choice])
        walk_.click(card.buttons[choice])

    walk_.choose_folder(images)
    choose("Images", "Choose the folder…")
    walk_.wait(lambda: str(images) in [c.path for c in app.form.config.concepts], "the folder")
    walk_.answers_by_itself = False
    walk_.type_into_dialog("z", "o", "g")
    choose("Images", "One sentence for all…")
    walk_.answers_by_itself = True
    app.root.focus_force()  # without a window manager, nothing else gives the keyboard back after a dialog
    walk_.wait(lambda: page.cards["Images"].sign.cget("text") == "✓", "the captions")
    before = app.form.config.training.epochs
    choose("Length", "Object")
    walk_.wait(lambda: app.form.config.training.epochs != before, "the length")
    walk_.wait(lambda: page.cards["Length"].sign.cget("text") == "✓", "the state of the length")
    walk_.fill(page, "training.epochs", "1")
    assert app.form.config.training.epochs == 1
    assert [c.path for c in app.form.config.concepts] == [str(images)], "the demo's images are not the user's"
    assert [prompt.prompt for prompt in app.form.config.sampling.prompts] == ["a photo of zog"]
    walk_.click(app.shell.bottom_bar.start)
    walk_.wait(lambda: session.is_active, "the run")
    walk_.wait(lambda: session.stage == "idle", "its end")
    assert session.state.finished is not None
    assert session.state.finished.outcome == "finished", session.state
    assert (walk_.folder / "mine.safetensors").is_file()


FLOWS = (demo_from_the_card, captions_and_masks, fork, queue_of_two, simple_page)


def main(arguments: list[str]) -> int:
    """Walk through all flows; return 1 if a step fails or the window reports an error."""
    parser = argparse.ArgumentParser(prog="python -m tests.ui.flows", description=__doc__)
    parser.add_argument("--managed", action="store_true", help="under a window manager")
    options = parser.parse_args(arguments)
    failed = False
    with tempfile.TemporaryDirectory(prefix="darkroom-flows-") as folder, ExitStack() as stack:
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            os.environ[name] = str(Path(folder) / name.lower())
        root = create_root(Theme("dark"))
        check_threads(root)
        if options.managed:
            stack.enter_context(managed(root))
        walk_ = Walk(root, Path(folder))
        keep_interpreter_smooth()
        for flow in FLOWS:
            begun = time.monotonic()
            try:
                flow(walk_)
            except Exception:  # noqa: BLE001 - the other flows continue; it is printed
                walk_.errors.append(flow.__name__)
                traceback.print_exc(file=sys.stdout)
            sys.stdout.write(f"{flow.__name__}: {time.monotonic() - begun:.0f} s\n")
            sys.stdout.flush()
        sys.stdout.write(f"Dialogs: {walk_.answered}\n")
        failed = bool(walk_.errors)
        walk_.app.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
