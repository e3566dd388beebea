"""The window of the self-test: what it is for, its progress with Stop, the verdict, and samples before and after."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from modules.config.codec import export_file
from modules.system.errors import DarkroomError
from trainer.child.process import Spawn, spawn_trainer
from trainer.jobs.config import new_results_folder
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import validate_settings
from ui.forms.context import Context
from ui.loop.jobs import JobRunner
from ui.widgets.controls import Button
from ui.widgets.dialog import Window, bring_to_front
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.photos import Photos
from ui.widgets.progress import ThinBar
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_PHOTO_PX = 150
_HELP = (
    "Does a run not learn? The model is measured here, then it memorizes one image, first with settings that are known "
    "to work, then with yours. This shows whether the weights, the program or the settings are wrong, and which ones. "
    "It takes a minute or two on a GPU, and your runs are not affected."
)
_SAMPLES = {
    "image": "The image",
    "known_before": "Before",
    "known_after": "Known settings",
    "config_after": "Your settings",
}


class SelfTestWindow(Window):
    """Starts a self-test in a process of its own; closing the window stops it."""

    def __init__(self, context: Context, *, spawn: Spawn = spawn_trainer) -> None:
        super().__init__(context.root, context.theme, "Self-test")
        self._context = context
        self.runner = JobRunner(spawn=spawn)
        self.problem = ""
        self.caption = TextVar(master=self, value="a photo")
        self.steps = TextVar(master=self, value="60")
        self._photos = Photos(self, context.pump, self._soon, most=len(_SAMPLES))
        pad = context.theme.px(PAD)
        WrappedText(self, context.theme, _HELP, colour="muted").pack(fill="x", padx=pad, pady=(pad, 0))
        self._add_choices(pad)
        self.add_footer(above_px=0)
        self.bar = ThinBar(self, self.theme)
        self.bar.pack(fill="x", padx=pad)
        self.status = WrappedText(self, self.theme, role="heading")
        self.status.pack(fill="x", padx=pad, pady=(self.theme.px(8), 0))
        self.notes = WrappedText(self, self.theme)
        self.notes.pack(fill="x", padx=pad, pady=(self.theme.px(4), 0))
        self._samples = Panel(self, self.theme)
        self._samples.pack(fill="both", expand=True, padx=pad, pady=pad)
        self.drain(context.pump, self.runner.drain)
        self.at_close(self.runner.close, self._photos.close)
        self.redraw_after(context.pump, self._follow, self.runner.changed)
        self._follow()
        self.appear(720, 530)

    def start(self) -> None:
        """Write the config into a new folder of the workspace, and test it in a child process."""
        config = self._context.form.config
        folder = new_results_folder(config, "self_tests", datetime.now())
        file, job = folder / "config.json", JOBS["self-test"]
        values = {"config": str(file), "out": str(folder), "caption": self.caption.get(), "steps": self.steps.get()}
        self.problem = ""
        try:
            settings = validate_settings(job.settings, values)
            if self._context.session.stage != "idle":
                raise DarkroomError("A run is training. Wait until it has ended, or stop it: both need the device.")
            folder.mkdir(parents=True, exist_ok=True)
            export_file(config, file)
            self.runner.start(job, settings)
        except OSError as error:
            self.problem = f"{file} cannot be written: {error.strerror or error}."
        except DarkroomError as error:
            self.problem = str(error)
        self._follow()

    def _add_choices(self, pad: int) -> None:
        px, row = self.theme.px, Panel(self, self.theme)
        row.pack(fill="x", padx=pad, pady=px(12))
        for label, variable, width in (("Caption of the first image", self.caption, 200), ("Steps", self.steps, 60)):
            Text(row, self.theme, label, colour="label").pack(side="left", padx=(0, px(6)))
            Entry(row, self.theme, variable, on="window", width=width).pack(side="left", padx=(0, px(18)))
        self.start_button = Button(row, self.theme, "Start", self.start, style="primary", width=92)
        self.start_button.pack(side="right")
        self.stop_button = Button(row, self.theme, "Stop", self.runner.stop, style="danger", width=92)

    def _soon(self) -> None:
        self._context.pump.redraw_soon(self, self._follow)

    def _follow(self) -> None:
        state = self.runner.state
        self.bar.set(state.share if state.is_active else 0.0)
        self.status.set_text(self.problem or state.status)
        self.notes.set_text("\n".join(state.notes) if state.stage == "finished" and not self.problem else "")
        self.status.recolour("error" if self.problem or state.stage == "failed" else "text")
        self.start_button.set_enabled(not state.is_active)
        if state.is_active:
            self.stop_button.pack(side="right", padx=(0, GAP))
        else:
            self.stop_button.pack_forget()
        self.stop_button.set_enabled(state.stage == "running")
        self._show_samples({path.stem: path for path in state.paths})

    def _show_samples(self, paths: dict[str, Path]) -> None:
        for child in self._samples.winfo_children():
            child.destroy()
        for name, title in _SAMPLES.items():
            key = (paths.get(name), self.theme.px(_PHOTO_PX))
            if name in paths:
                self._photos.load(key)
            place = Panel(self._samples, self.theme)
            place.pack(side="left", padx=(0, self.theme.px(14)), anchor="n")
            frame = Panel(place, self.theme, "field", width=key[1], height=key[1])
            frame.pack_propagate(False)
            frame.pack()
            if (photo := self._photos.get(key)) is not None:
                Text(frame, self.theme, on="field", image=photo).pack(expand=True)
            Text(place, self.theme, title, colour="muted").pack()


def open_self_test(context: Context) -> SelfTestWindow:
    """Open the window; one that is already open is brought to the front, because it may be testing."""
    return bring_to_front(context.root, SelfTestWindow) or SelfTestWindow(context)
