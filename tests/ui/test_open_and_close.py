"""Every window, dialog and menu, opened and closed again and again, leaves nothing behind. One thread calls Tk."""

from __future__ import annotations

import gc
import threading
import tkinter as tk
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from customtkinter.windows.widgets.appearance_mode import AppearanceModeTracker
from customtkinter.windows.widgets.scaling import ScalingTracker
from PIL import Image

from modules.config.records import record_at
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.driving import walk
from tests.unit.test_run_records import started, validated, write_run
from trainer.events import SampleReady
from trainer.run_folder.records import read_record
from ui.features.base_model.window import BaseModelWindow
from ui.features.captions.opening import open_automatic_captions, open_caption_editor
from ui.features.config_views.differences import Differences
from ui.features.config_views.json_window import JsonView
from ui.features.generate.page import IdleSampleViewer
from ui.features.length import LengthWindow
from ui.features.presets.window import PresetList
from ui.features.run.sample_grid import SampleTable
from ui.features.run.sample_viewer import SampleViewer
from ui.features.runs.comparison import RunComparison
from ui.features.search.finder import Finder
from ui.features.self_test import open_self_test
from ui.features.tokens import SecretsDialog
from ui.forms import items
from ui.forms.chooser import Chooser
from ui.forms.group_card import reset_menu
from ui.forms.model import Source
from ui.loop.background import Job
from ui.loop.interaction import Answer, Failure
from ui.loop.signal import Signal
from ui.widgets import dialog as dialogs
from ui.widgets.files.dialog import FileDialog
from ui.widgets.files.listing import Entry
from ui.widgets.image_grid import Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.tk_interaction import FileServices, TkInteraction

Openers = dict[str, Callable[[], object]]


@pytest.fixture
def full_window(window: Window, tmp_path: Path) -> Window:
    fill(window, tmp_path)
    return window


def fill(window: Window, tmp_path: Path) -> None:
    """Give a window two concepts, a prompt, an embedding and two runs."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name in "abc":
        Image.effect_noise((64, 48), 50).convert("RGB").save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text("a cat, blue sky")
    config = Config.model_validate(
        {
            "general": {"workspace_dir": str(tmp_path / "workspace")},
            "sampling": {"prompts": [{"prompt": "a cat"}]},
            "embeddings": {"words": [{"placeholder": "zog"}]},
        }
    )
    context = window.app.context
    context.form.load(config, Source("full"))
    items.add(context.form, "concepts", [Concept(path=str(folder)), Concept(path=str(folder))])
    for number in (1, 2):
        events = [(0.0, started(tmp_path)), (1.0, validated(1, 0.5, 0.5, 1))]
        write_run(tmp_path / "workspace", f"2026-03-0{number}_12-00-00", events)


def openers(window: Window, tmp_path: Path) -> Openers:
    """Return what opens each window, dialog and menu."""
    context, shell = window.app.context, window.app.shell
    root, form, theme = context.root, context.form, context.theme
    pages: dict[str, Any] = {
        key: window.open_page(key) for key in ("concepts", "sampling", "embeddings", "queue", "run")
    }
    images = sorted((tmp_path / "images").glob("*.png"))
    tiles = [Tile(path, path.stem) for path in images]
    table = SampleTable(tuple(SampleReady(n, 0, "a cat", str(path)) for n, path in enumerate(images)))
    records = [read_record(path) for path in sorted((tmp_path / "workspace" / "runs").iterdir())]
    ask = TkInteraction(root, theme)
    ask.serve_files(FileServices(context.pump, context.preferences, tuple))
    optimizer = record_at(form.config, "training.optimizer")
    assert optimizer is not None

    def in_dialog(open_it: Callable[[], object]) -> Callable[[], object]:
        """Close the dialog as soon as it is there: it waits for its answer."""

        def opened() -> None:
            def look() -> None:
                shown = [w for w in root.winfo_children() if isinstance(w, dialogs.Dialog) and w.winfo_viewable()]
                if shown:
                    shown[0].close()
                else:
                    root.after(5, look)

            root.after(5, look)
            open_it()

        return opened

    def in_captions(verb: str) -> Callable[[], object]:
        def opened() -> None:
            editor = open_caption_editor(context)
            assert editor is not None
            getattr(editor, verb)()
            window.settle()

        return opened

    def concept_tabs() -> None:
        editor = pages["concepts"].edit(0)
        for title in editor._titles:
            editor.show(title)
            window.settle()

    def viewer() -> None:
        opened = SampleViewer(context, table, (0, 0), (), on_star=print, on_save=print)
        window.settle()
        opened._open_steps()
        opened._menu.unpost()

    def posted(menu: Callable[[], tk.Menu]) -> Callable[[], object]:
        def opened() -> None:
            made = menu()
            made.tk_popup(10, 10)
            made.unpost()

        return opened

    answers = (Answer("no", "No"), Answer("yes", "Yes", is_default=True))
    reset = lambda: reset_menu(shell.top_bar, context, optimizer)  # noqa: E731
    return {
        "finder": lambda: Finder(context),
        "presets": lambda: PresetList(context, print),
        "length": lambda: LengthWindow(context),
        "base model": lambda: BaseModelWindow(context, offers_family=True),
        "captions of the card": lambda: open_automatic_captions(context),
        "differences": lambda: Differences(context),
        "self-test": lambda: open_self_test(context),
        "JSON": lambda: JsonView(context),
        "chooser": lambda: Chooser(context, optimizer, print),
        "concept": concept_tabs,
        "prompt": lambda: pages["sampling"].edit(0),
        "embedding": lambda: pages["embeddings"].edit(0),
        "captions": lambda: open_caption_editor(context),
        "replace": in_captions("open_replace"),
        "automatic captions": in_captions("open_captions"),
        "automatic masks": in_captions("open_masks"),
        "images": lambda: ImageViewer(context.root, context.theme, context.pump, tiles, 0),
        "idle samples": lambda: IdleSampleViewer(context, tiles, 0, print),
        "samples": viewer,
        "comparison": lambda: RunComparison(context, records),
        "tokens": in_dialog(lambda: SecretsDialog(context).ask()),
        "question": in_dialog(lambda: ask.choose("Sure?", "It is a question.", answers, "warning")),
        "text": in_dialog(lambda: ask.ask_text("Name", "A name.", "zog")),
        "start": in_dialog(lambda: ask.confirm_start([Problem("warning", "Slow.")], None)),
        "failure": in_dialog(
            lambda: ask.show_failure(Failure("No", "It failed.", details="all", details_file=tmp_path))
        ),
        "folder": in_dialog(lambda: ask.ask_folders("Folders", tmp_path)),
        "path": in_dialog(lambda: ask._show_path(tmp_path)),
        "preset menu": posted(shell.top_bar.make_menu),
        "save menu": posted(shell.top_bar.make_save_menu),
        "window menu": posted(shell.side_bar.make_window_menu),
        "pause menu": posted(shell.bottom_bar.make_pause_menu),
        "concept menu": posted(pages["concepts"].menu),
        "queue menu": posted(lambda: pages["queue"].preset_menu(context.documents.presets())),
        "field menu": posted(reset),
        "tip": lambda: (context.tips.show("A tip.", 20, 20), context.tips._leave()),
    }


def close_windows(window: Window) -> None:
    """Close every window that is open, as its button does."""
    window.settle()
    for widget in window.app.root.winfo_children():
        if isinstance(widget, dialogs.Window) and widget.winfo_exists():
            widget.close()
    window.settle()


def left(window: Window) -> dict[str, int]:
    """Count what a window may leave behind: in Tk, in customtkinter, in the pump and in the models."""
    context, tcl = window.app.context, window.app.root.tk
    pump = context.pump
    variables = tcl.splitlist(tcl.call("info", "vars", "PY_VAR*"))
    models = (context.form, context.preferences, context.session, window.app.queue, context.notices, context.findings)
    signals = [signal for model in models for signal in vars(model).values() if isinstance(signal, Signal)]
    return {
        "widgets": sum(1 for _ in walk(window.app.root)),
        "after events": len(tcl.splitlist(tcl.call("after", "info"))),
        "variables": len(variables),
        "traces": sum(len(tcl.splitlist(tcl.call("trace", "info", "variable", name))) for name in variables),
        "images": len(tcl.splitlist(tcl.call("image", "names"))),
        "Tcl commands": len(tcl.splitlist(tcl.call("info", "commands"))),
        "global bindings": sum(len(str(tcl.call("bind", "all", name))) for name in window.app.root.bind_all()),
        "sources": len(pump._drains),
        "redraws": len(pump._redraws) + len(pump._draw_times),
        "tasks": len(pump._tasks),
        "listeners": sum(len(signal._listeners) for signal in signals),
        "watchers": len(context.form._watchers),
        "modes": len(AppearanceModeTracker.callback_list),
        "scales": sum(len(found) for found in ScalingTracker.window_widgets_dict.values()),
    }


@pytest.mark.daily(1)
@pytest.mark.parametrize("num_rounds", [2, pytest.param(25, marks=[pytest.mark.full, pytest.mark.timeout(1800)])])
def test_every_window_is_closed_without_a_trace(full_window: Window, tmp_path: Path, num_rounds: int) -> None:
    leaks: dict[str, list[str]] = {}
    for name, open_it in openers(full_window, tmp_path).items():
        counts = []
        for _ in range(1 + num_rounds):  # the first one also builds what is kept, such as fonts
            open_it()
            close_windows(full_window)
            gc.collect()  # otherwise some of what was closed is collected by chance, and some later
            counts.append(left(full_window))
        growing = [
            what for what in counts[0] if num_growing([count[what] for count in counts]) > max(1, num_rounds // 10)
        ]
        if growing:
            leaks[name] = [f"{what}: {counts[0][what]} to {counts[-1][what]}" for what in growing]
    assert not leaks, "\n".join(f"{name}: {', '.join(what)}" for name, what in leaks.items())


def num_growing(counts: list[int]) -> int:
    """Return how many more rounds left something than removed something: what comes once is no leak."""
    return sum((later > earlier) - (later < earlier) for earlier, later in pairwise(counts))


def test_a_window_that_is_closed_while_it_reads_is_not_kept_by_that(
    full_window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk, each window with its variables stayed until its folder was read."""
    context, jobs = full_window.app.context, list[Job]()
    services = FileServices(context.pump, context.preferences, tuple)
    monkeypatch.setattr(context.pump.background, "_submit", lambda job: jobs.append(job) or job)
    captions = open_automatic_captions(context)
    assert captions is not None
    captions.start()
    dialog = FileDialog(context.root, context.theme, services, "folders", "Folders", tmp_path)
    dialog._detail(Entry(str(tmp_path), "images", is_folder=True))
    assert len(jobs) == 4, "drawn or not, the downloaded model, the folder, and the images in it"
    for closed in (captions, dialog):
        closed.close()
    assert all(job.is_cancelled for job in jobs)


def test_a_call_to_tk_from_another_thread_is_found(window: Window, logged_errors: list[str]) -> None:
    """The check under which all tests of the window run."""
    thread = threading.Thread(target=window.app.root.winfo_exists, name="stray")
    thread.start()
    window.wait_until(lambda: not thread.is_alive(), "the thread")
    assert "The thread stray called Tk" in logged_errors.pop(0)
    logged_errors.clear()
