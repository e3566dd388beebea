"""`python -m tests.ui.screenshots OUT [--run RUN_DIR] [--only TEXT]`: screenshots of every page and window.

Needs a display. Every page is drawn at three sizes, and some at other scales and in light. RUN_DIR is the folder of a
finished run of the demo, whose curves and samples are shown; without it, the demo is trained first. With `--only` just
the screenshots are taken whose names contain TEXT. The user's session is left alone.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import ImageGrab

from modules.config.codec import load_file, save_file
from modules.config.presets import DEMO, list_presets
from modules.config.records import record_at
from modules.settings.edit import set_path
from modules.system.problem import Problem
from tests.ui.recorder import Recorder
from trainer.probe.curve import RatePoint
from trainer.probe.plot import batch_plot, rate_plot
from ui.app.catalogue import PAGES
from ui.app.window import App
from ui.features.captions.opening import open_caption_editor
from ui.features.config_views.differences import Differences
from ui.features.config_views.json_window import JsonView
from ui.features.probe import BATCH, RATE, ProbeFindings, ProbeWindow
from ui.features.runs.comparison import RunComparison
from ui.features.search.finder import Finder
from ui.features.tokens import SecretsDialog
from ui.forms.chooser import Chooser
from ui.forms.context import Context
from ui.forms.model import Source
from ui.loop.interaction import Answer, Failure
from ui.loop.past_runs import read_past_state
from ui.loop.run_state import RunState
from ui.widgets.dialog import Dialog, Window
from ui.widgets.image_grid import Tile
from ui.widgets.image_viewer import ImageViewer
from ui.widgets.tk_interaction import FileServices, TkInteraction

SIZES = ((1024, 600), (1100, 740), (1920, 1080))
_PATIENCE_SECONDS = 20.0
_TELLING = ("home", "concepts", "training", "run", "runs", "queue", "sample", "tools")  # at other scales, in light
_LONG = ("model", "data", "training", "output")  # with the advanced settings, too
_DENSE = ("concept-statistics", "concept-augmentation", "captions", "probe", "sample", "comparison")  # too, of windows


class Camera:
    """One window, its size, and the screenshots of it."""

    def __init__(
        self, out: Path, run_dir: Path, *, scale_percent: int = 100, appearance: str = "dark", only: str = ""
    ) -> None:
        self.app = App(interaction=Recorder())
        self.app.preferences.change(appearance=appearance, first_steps="")
        if self.app.theme.scale != scale_percent / 100:
            self.app.preferences.change(scale_percent=scale_percent)
            self.app.close()  # the scale is that of the next window
            self.app = App(interaction=Recorder())
        self.root = self.app.root
        self._out, self._only = out, only
        self.app.show()
        self.app.form.load(load_file(run_dir / "config.json").config, Source("demo"))
        self.app.context.session.show_past(read_past_state(run_dir), self.app.form.config)
        self.settle()

    def resize(self, width: int, height: int) -> None:
        """Change the size of the window."""
        self.root.geometry(f"{width}x{height}+0+0")
        self.settle()
        x, y = self.root.winfo_screenwidth() - 1, self.root.winfo_screenheight() - 1
        self.root.event_generate("<Motion>", warp=True, x=x, y=y)  # away from what has a tooltip

    def settle(self) -> None:
        """Run the window until nothing has been built, scanned or drawn for a while."""
        context, quiet_since = self.app.context, time.monotonic()
        deadline = quiet_since + _PATIENCE_SECONDS
        while time.monotonic() - quiet_since < 0.6 and time.monotonic() < deadline:
            self.root.update()
            time.sleep(0.005)
            if not (context.pump.is_idle and context.field_problems.is_current):
                quiet_since = time.monotonic()

    def take(self, name: str, window: Any = None) -> None:
        """Save a screenshot of the window, or of another one."""
        window = window or self.root
        self.settle()
        left, top = window.winfo_rootx(), window.winfo_rooty()
        box = (left, top, left + window.winfo_width(), top + window.winfo_height())
        ImageGrab.grab(bbox=box, xdisplay=os.environ["DISPLAY"]).save(self._out / f"{name}.png")

    def wants(self, name: str) -> bool:
        """Return whether a screenshot is to be taken."""
        return self._only in name

    def pages(self, suffix: str, keys: tuple[str, ...] = ()) -> None:
        """Take every page, or some."""
        for page in PAGES:
            is_wanted = not page.on_demand and (not keys or page.key in keys)
            if is_wanted and self.wants(f"page-{page.key}-{suffix}"):
                self.app.context.navigation.open(page.key)
                self.take(f"page-{page.key}-{suffix}")

    def method_pages(self, suffix: str) -> None:
        """Take the page of a method that learns from rewards, and that of choices."""
        names = {key: f"page-{key}-{suffix}" for key in ("rewards-grpo", "choose")}
        if any(map(self.wants, names.values())):
            self.app.form.choose_variant("training.method", "grpo")
            for key, name in names.items():
                self.app.context.navigation.open(key.partition("-")[0])
                self.take(name)
            self.app.form.choose_variant("training.method", "denoise")

    def windows(self, run_dir: Path, suffix: str, names: tuple[str, ...] = ()) -> None:
        """Take every window, or some."""
        for name, open_it in windows(self, run_dir):
            if (not names or name in names) and self.wants(f"window-{name}{suffix}"):
                self.window(f"{name}{suffix}", open_it)

    def window(self, name: str, open_it: Callable[[], Any]) -> None:
        """Take the window that a function opens, and close it; a modal one is taken while it waits."""
        before = set(self.root.winfo_children())

        def take_dialog() -> None:
            shown = [w for w in self.root.winfo_children() if isinstance(w, Dialog) and w.winfo_viewable()]
            if shown:
                self.take(f"window-{name}", shown[0])
                shown[0].close()
            else:
                self.root.after(50, take_dialog)

        timer = self.root.after(50, take_dialog)
        opened = open_it()
        self.root.after_cancel(timer)
        if isinstance(opened, Window):
            self.take(f"window-{name}", opened)
        for widget in set(self.root.winfo_children()) - before:
            if isinstance(widget, Window):
                widget.close()


def windows(camera: Camera, run_dir: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each window with the function that opens it."""
    app, context = camera.app, camera.app.context
    for key in ("runs", "run"):  # whose curves, samples and runs the windows show
        context.navigation.open(key)
        camera.settle()
    pages: dict[str, Any] = {key: app.shell.page(key) for key in ("concepts", "sampling", "embeddings", "runs", "run")}
    ask = TkInteraction(camera.root, app.theme)
    ask.serve_files(FileServices(context.pump, context.preferences, app._places))
    optimizer = record_at(app.form.config, "training.optimizer")
    assert optimizer is not None
    answers = (
        Answer("keep", "Keep the window", is_default=True),
        Answer("stop", "Stop and close"),
        Answer("leave", "Close, keep training"),
    )
    warnings = [Problem("training.learning_rate", "The learning rate 0.01 is high.", "warning", "Typical: 1e-4.")]
    failure = Failure("The run failed", "There was not enough memory.", "Lower the batch size.", "details", run_dir)
    samples = sorted(run_dir.glob("samples/**/*.png"))
    tiles = [Tile(path, path.stem) for path in samples]
    yield "finder", lambda: Finder(context)
    yield "differences", lambda: Differences(context, "defaults")
    yield "json", lambda: JsonView(context)
    yield "chooser", lambda: Chooser(context, optimizer, print)
    for title in ("General", "Augmentation", "Text", "Statistics", "Doctor"):

        def concept(title: str = title) -> Any:
            editor = pages["concepts"].edit(0)
            editor.show(title)
            return editor

        yield f"concept-{title.lower()}", concept
    yield "captions", lambda: open_caption_editor(context)
    for name, verb in (("replace", "open_replace"), ("annotate", "open_captions")):

        def beside(name: str = name, verb: str = verb) -> Any:
            editor: Any = open_caption_editor(context)
            camera.settle()
            getattr(editor, verb)()
            return getattr(editor, f"{name}_window")

        yield name, beside
    yield "probe", lambda: probed(context)
    for action in ("fit", "length", "bundle", "manage_presets", "keys", "about"):

        def act(action: str = action) -> Any:
            before = set(camera.root.winfo_children())
            context.actions.run(action)
            return next(w for w in camera.root.winfo_children() if w not in before and isinstance(w, Window))

        yield action, act
    yield "prompt", lambda: pages["sampling"].edit(0)
    yield "images", lambda: ImageViewer(context.root, context.theme, context.pump, tiles, 0)

    def sample() -> Any:
        context.navigation.open("run")
        pages["run"].samples.open((0, len(pages["run"].samples.table.steps) - 1))
        return pages["run"].samples.viewer

    yield "sample", sample
    yield "comparison", lambda: RunComparison(context, pages["runs"].listed_runs[:2])
    yield "tokens", lambda: SecretsDialog(context).ask()
    yield "question", lambda: ask.choose("Training is running", "Stop writes a backup.", answers, "warning")
    yield "text", lambda: ask.ask_text("Save as a preset", "Its name:", "my preset")
    yield "start", lambda: ask.confirm_start(warnings, None)
    yield "failure", lambda: ask.show_failure(failure)
    yield "folder", lambda: ask.ask_folders("Add folders of images", run_dir)


def probed(context: Context) -> ProbeWindow:
    """Return the window of a probe that has measured a made-up curve."""
    points = [RatePoint(10 ** (-6 + n / 15), 0.2, 0.2 + 0.01 * math.sin(7 * n)) for n in range(60)]
    falling = [0.004 * math.sin(n) - 0.12 * math.exp(-(((n - 44) / 9) ** 2)) for n in range(60)]
    changes = [after - (p.untrained_loss - p.loss) / 4 for p, after in zip(points, falling, strict=True)]
    rates = rate_plot([p.rate for p in points], changes, falling, 4.6e-4)
    speeds = batch_plot([1, 2, 3, 4, 6, 8], [3.1, 5.4, 7.0, 8.1, 8.2, 8.3], 4)
    words = ("The loss falls most steeply at a learning rate of about 4.6e-04.", "The largest batch that ran is 8.")
    window = ProbeWindow(context)
    window.probing.findings = ProbeFindings(words, {RATE: rates, BATCH: speeds}, 4, 4.6e-4)
    window.probing.changed()
    return window


def filled_queue(camera: Camera) -> None:
    """Add two copies of the config to the queue, one with other settings."""
    context = camera.app.context
    for epochs in (30, 60):
        context.form.edit("training.epochs", epochs)
        camera.app.queue.add("demo", context.form.config)
        camera.settle()
    context.form.undo()
    page: Any = camera.app.shell.page("queue")
    page.frame.is_shown = True
    page.on_show()
    camera.settle()
    page.table.select([1])  # so that the line below the table shows how it differs


def trained_demo(home: Path) -> Path:
    """Train the demo in a folder, after a shorter run; return the run's folder."""
    from trainer.__main__ import main as command_line

    demo = next(preset for preset in list_presets() if preset.name == DEMO).load().config
    for path, value in (
        ("general.workspace_dir", str(home / "workspace")),
        ("general.cache_dir", str(home / "cache")),
        ("output.destination", str(home / "lora.safetensors")),
    ):
        demo, _ = set_path(demo, path, value)
    for epochs in (8, demo.training.epochs):  # a short one to compare with
        save_file(set_path(demo, "training.epochs", epochs)[0], home / "demo.json")
        command_line(["train", str(home / "demo.json")])
    return max((home / "workspace" / "runs").iterdir())


def main(arguments: list[str]) -> int:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(prog="python -m tests.ui.screenshots", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="darkroom-screenshots-") as folder:
        home = Path(folder)
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
            os.environ[name] = str(home / name.lower())
        run_dir = (options.run or trained_demo(home)).resolve()
        take_all(options.out, run_dir, options.only)
    return 0


def take_all(out: Path, run_dir: Path, only: str) -> None:
    """Take all screenshots, or those whose names contain a text."""
    camera = Camera(out, run_dir, only=only)
    filled_queue(camera)
    for width, height in SIZES:
        camera.resize(width, height)
        camera.pages(f"{width}")
        camera.app.preferences.change(show_advanced=True)
        camera.pages(f"{width}-advanced", _LONG)
        camera.app.preferences.change(show_advanced=False)
        camera.method_pages(f"{width}")
    camera.resize(*SIZES[1])
    if camera.wants("page-run-before"):
        session, state = camera.app.context.session, camera.app.context.session.state
        session.show_past(RunState(), camera.app.form.config)
        camera.app.context.navigation.open("run")
        camera.take("page-run-before")
        session.show_past(state, camera.app.form.config)
    if camera.wants("first-steps"):
        camera.app.preferences.change(first_steps="demo")
        camera.take("first-steps")
        camera.app.preferences.change(first_steps="")
    for appearance in ("dark", "light"):
        camera.app.preferences.change(appearance=appearance)
        camera.windows(run_dir, "" if appearance == "dark" else "-light")
    camera.pages("light", _TELLING)
    camera.resize(*SIZES[2])
    camera.pages("1920-light", _TELLING)
    camera.app.close()
    for percent in (150, 200):
        camera = Camera(out, run_dir, scale_percent=percent, only=only)
        camera.resize(*SIZES[2])
        camera.pages(f"{percent}%", _TELLING)
        camera.windows(run_dir, f"-{percent}%", _DENSE)
        camera.app.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
