"""The window that writes captions or masks for a folder with a model: its options, progress and Stop."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from modules.annotators.registry import (
    CAPTIONERS,
    MASKERS,
    CaptionerSpec,
    MaskerSpec,
    captioner_for,
    find_place,
)
from modules.settings.field import Section
from modules.system.errors import DarkroomError
from modules.system.problem import agree
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import validate_settings
from ui.features.captions.image_set import Source
from ui.forms.context import Context
from ui.forms.remedy_row import RemedyRow
from ui.forms.section_form import SectionForm
from ui.loop.interaction import Answer
from ui.loop.jobs import JobRunner
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.log import JobLines
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import GAP, PAD

_SIZE = (620, 680)
_HIDDEN_SETTINGS = (
    "folder",
    "masks_folder",
    "extension",
    "download",
)  # they follow from the editor, and from an answer


class AnnotateWindow(Window):
    """Runs the verb caption or mask in a child process. `done()` is called when files were written."""

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        source: Source,
        *,
        is_for_masks: bool,
        done: Callable[[], object] = lambda: None,
    ) -> None:
        self.what = "masks" if is_for_masks else "captions"
        super().__init__(master, context.theme, f"Automatic {self.what}")
        self.source = source
        self.runner = JobRunner()
        self._context, self._done = context, done
        self._specs: Mapping[str, CaptionerSpec | MaskerSpec] = MASKERS if is_for_masks else CAPTIONERS
        self.job = JOBS["mask" if is_for_masks else "caption"]
        self._build()
        self._show_model()
        if not is_for_masks and context.preferences.now.captioner not in CAPTIONERS:
            job = context.pump.background.run(partial(_look_drawn, source), self._propose, lambda _error: None)
            self.at_close(job.cancel)
        self.appear(*_SIZE)
        self.drain(context.pump, self.runner.drain)
        self.at_close(partial(context.pump.forget, self), self.runner.close)
        self.runner.changed.subscribe(lambda: context.pump.redraw_soon(self, self._show, at_most_every_seconds=0.1))

    # -- building

    def _build(self) -> None:
        theme, px = self.theme, self.theme.px
        Text(self, theme, str(self.source.folder), role="small", colour="muted", wrap_px=_SIZE[0] - 40).pack(
            anchor="w", padx=px(PAD), pady=(px(PAD), px(6))
        )
        footer = self.add_footer(above_px=0)
        self.start_button = Button(footer, theme, "Start", self.start, style="primary", width=110)
        self.start_button.pack(side="right", padx=GAP)
        self.stop_button = Button(footer, theme, "Stop", self.stop, width=90)
        self.stop_button.pack(side="right")
        self.stop_button.set_enabled(False)
        progress = Panel(self, theme)
        progress.pack(side="bottom", fill="x", padx=px(PAD), pady=(px(8), 0))
        self.log = JobLines(progress, theme, height=6, wrap="none")  # shown once it has lines
        self.bar = ThinBar(progress, theme, on="window")
        self.bar.pack(fill="x")
        self.status = WrappedText(progress, theme, colour="label")
        self.status.pack(fill="x", pady=px(8))
        self.remedy = RemedyRow(progress, self._context, on="window")
        self.remedy.pack(fill="x")
        scroll = ScrollFrame(self, theme)
        scroll.pack(fill="both", expand=True, padx=(px(PAD), 0))
        self.help = WrappedText(scroll.body, theme, role="small", colour="muted")
        self.help.pack(fill="x", pady=(0, px(4)))
        self.missing = Panel(scroll.body, theme)
        self.missing_text = Text(self.missing, theme, role="small", colour="warning")
        self.missing_text.pack(side="left")
        self.install_button = Button(self.missing, theme, "Install…", self.install, height=24)
        self.install_button.pack(side="left", padx=(GAP, 0))
        card = Card(scroll.body, theme)
        card.pack(fill="x")
        first = ("model", "mode")
        self.form = SectionForm(card.body, self._context, self._settings(), without=_HIDDEN_SETTINGS, first=first)
        self.form.pack(fill="x")
        self.form.model.watch("model", self._show_model)

    def _settings(self) -> Section:
        """Return the settings with which the window opens."""
        source = self.source
        values: dict[str, Any] = {"folder": str(source.folder), "include_subfolders": source.include_subfolders}
        if self.what == "captions":
            last = self._context.preferences.now.captioner
            values["extension"] = source.extension
            values["model"] = last if last in CAPTIONERS else captioner_for(are_drawn=False).name
        elif source.masks_folder is not None:
            values["masks_folder"] = str(source.masks_folder)
        return validate_settings(self.job.settings, values)

    def _propose(self, are_drawn: bool) -> None:
        """Choose a captioner for drawings if the images look drawn, and none was chosen in the meantime."""
        if not are_drawn or not self.winfo_exists() or self.runner.state.is_active:
            return
        if self.spec == captioner_for(are_drawn=False):
            self.form.set("model", captioner_for(are_drawn=True).name)

    @property
    def spec(self) -> CaptionerSpec | MaskerSpec:
        """The chosen model."""
        return self._specs[self.form.model.value("model")]

    def _show_model(self) -> None:
        """Show what the model is for, and where its files are."""
        spec = self.spec
        if not self.runner.state.is_active:
            self._show_status("", "label")  # it was about the model before
            self.remedy.show(None)
        missing = self._missing()
        lines = [spec.help]
        if spec.files is not None:
            lines.append(f"Files: {spec.files.description}.{f' Licence: {spec.licence}.' if spec.licence else ''}")
        self.help.set_text("\n".join(lines))
        are = agree(len(missing), "is")
        self.missing_text.set_text(f"This model needs {' and '.join(missing)}, which {are} not installed.")
        if missing:
            self.missing.pack(fill="x", pady=(0, self.theme.px(8)), after=self.help)
        else:
            self.missing.pack_forget()

    def _missing(self) -> list[str]:
        """Return the packages that the chosen model lacks."""
        return [package.pip_name for package in self.spec.packages if not package.is_installed]

    def install(self) -> None:
        """Install the packages that the chosen model lacks."""
        if missing := self._missing():
            self._context.links.install_packages(missing, partial(self._follow_installation, missing))

    def _follow_installation(self, wanted: Sequence[str]) -> None:
        if not self.winfo_exists():
            return
        self._show_model()
        if not set(wanted) & set(self._missing()):
            self._show_status(f"Installed {' and '.join(wanted)}. Now press Start.", "good")

    # -- running

    def start(self) -> None:
        """Check the options, ask before a download, and start the process."""
        if self.runner.state.is_active:
            return
        try:
            settings = self.form.settings
        except DarkroomError as error:
            self._show_status(str(error), "error")
            return
        if missing := self._missing():
            self._show_status(f"Install {' and '.join(missing)}, or choose another model.", "error")
            return
        if self.what == "captions":
            self._context.preferences.change(captioner=self.spec.name)
        self.start_button.set_enabled(False)
        files = self.spec.files
        if files is None:
            self._launch(settings, may_download=False)
        else:
            job = self._context.pump.background.run(
                lambda: find_place(files),
                lambda place: self._choose_download(settings, place),
                lambda _e: self._choose_download(settings, None),
            )
            self.at_close(job.cancel)

    def stop(self) -> None:
        """Stop after the current image."""
        self.runner.stop()

    def destroy(self) -> None:
        """Also end the process, after its current image; files that are written stay."""
        super().destroy()
        self._context.captions_changed()

    def _choose_download(self, settings: Section, place: Path | None) -> None:
        if not self.winfo_exists():
            return
        if place is None and self.spec.files is not None:
            message = f"{self.spec.label} needs files that are not on this computer:\n{self.spec.files.description}"
            answers = (Answer("no", "Cancel"), Answer("download", "Download and start", is_default=True))
            if self._context.interaction.choose("Download the model?", message, answers) != "download":
                self.start_button.set_enabled(True)
                return
        self._launch(settings, may_download=place is None)

    def _launch(self, settings: Section, *, may_download: bool) -> None:
        self.runner.start(self.job, settings.model_copy(update={"download": may_download}))

    def _show(self) -> None:
        state = self.runner.state
        self.bar.set(state.share)
        self._show_status(state.status, "label" if state.failure is None else "error")
        self.remedy.show(state.failure)
        self.log.show(state.lines)
        if state.lines and not self.log.winfo_manager():
            self.log.pack(fill="x", pady=(0, self.theme.px(8)), before=self.bar)
        self.start_button.set_enabled(not state.is_active)
        self.stop_button.set_enabled(state.stage == "running")
        if not state.is_active:
            self._done()
            self._context.captions_changed()

    def _show_status(self, text: str, token: str) -> None:
        self.status.recolour(token)
        self.status.set_text(text)


def _look_drawn(source: Source) -> bool:
    from modules.annotators.drawn import look_drawn

    return look_drawn(source.folder, include_subfolders=source.include_subfolders)
