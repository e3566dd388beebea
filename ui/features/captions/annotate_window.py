"""The window that writes captions or masks for a folder with a model: its options, progress and Stop."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.annotators.protocol import CaptionSettings, MaskSettings
from modules.annotators.registry import CAPTIONERS, MASKERS
from modules.annotators.results import CAPTION_MODES, MASK_MODES
from modules.annotators.spec import CaptionerSpec, MaskerSpec, find_place
from trainer.annotation.arguments import caption_arguments, mask_arguments
from trainer.annotation.captions import CaptionRequest
from trainer.annotation.masks import MaskRequest
from ui.features.captions.image_set import Source
from ui.forms.context import Context
from ui.loop.interaction import Answer
from ui.loop.jobs import JobRunner
from ui.widgets.controls import Button, Choice, Switch
from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.scroll import ScrollFrame
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import FlagVar, TextVar

_SIZE = (620, 680)
_LABEL_PX = 190
_DEVICES = {"auto": "Automatic", "cpu": "CPU"}
_DETAILS = {"short": "One sentence", "detailed": "Several sentences", "long": "A paragraph"}


@dataclass(frozen=True, slots=True)
class Option:
    """A row: its name in code, label and help, the choices of a choice, and the model's setting that shows it."""

    name: str
    label: str
    help: str = ""
    default: str | bool = ""
    choices: Mapping[str, str] | None = None
    setting: str = ""


_CAPTION_OPTIONS = (
    Option("prefix", "Text before", "Put before each caption as it is, such as: zog, "),
    Option("suffix", "Text after", "Put after each caption as it is"),
    Option("initial", "Beginning", "The model continues this text, such as: a photo of", setting="initial"),
    Option("detail", "Detail", "How much is described", "detailed", _DETAILS, "detail"),
    Option("threshold", "Threshold", "Least probability of a tag, 0 to 1", "0.35", setting="threshold"),
    Option(
        "character_threshold", "Character threshold", "Least probability of the name of a character, 0 to 1", "0.85",
        setting="character_threshold",
    ),
    Option("excluded_tags", "Never write", "Tags, separated by commas", setting="excluded_tags"),
    Option("keep_underscores", "Keep underscores", "long_hair, not long hair", False, setting="keep_underscores"),
)  # fmt: skip
_MASK_OPTIONS = (
    Option("prompts", "What to mask in", "Texts, separated by commas, such as: a face", setting="prompts"),
    Option("colour", "Colour to mask out", "A name, or a value such as #ffcc00", "white", setting="colour"),
    Option("tolerance", "Tolerance", "Largest difference from the colour, 0 to 255", "20", setting="tolerance"),
    Option("threshold", "Threshold", "Least probability of a white pixel, 0 to 1", "0.3", setting="threshold"),
    Option("expand_px", "Expand by (px)", "Grow the white on all sides; a negative number shrinks it", "10"),
    Option("smooth_px", "Smooth by (px)", "Radius of the soft edge", "5"),
    Option("share", "Strength", "How much of the new mask counts, 0 to 1", "1.0"),
    Option("is_inverted", "Invert", "Mask out what is found", False),
)


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
        self._option_rows = _MASK_OPTIONS if is_for_masks else _CAPTION_OPTIONS
        self.variables: dict[str, Any] = {}
        self._rows: dict[str, list[tk.Widget]] = {}
        self._build(MASK_MODES if is_for_masks else CAPTION_MODES)
        self._show_model()
        self.appear(*_SIZE)
        context.pump.add_source(self.runner.drain)
        self.runner.changed.subscribe(lambda: context.pump.redraw_soon(self, self._show, at_most_every_seconds=0.1))

    # -- building

    def _build(self, modes: Mapping[Any, str]) -> None:
        theme, px = self.theme, self.theme.px
        Text(self, theme, str(self.source.folder), role="small", colour="muted", wrap_px=_SIZE[0] - 40).pack(
            anchor="w", padx=px(PAD), pady=(px(PAD), px(6))
        )
        footer = Panel(self, theme)
        footer.pack(side="bottom", fill="x", padx=px(PAD), pady=px(PAD))
        self.log = tk.Text(
            footer, height=6, wrap="none", borderwidth=0, highlightthickness=0, state="disabled", padx=px(8),
            pady=px(6), font=theme.font("small"), background=theme.colour("card"), foreground=theme.colour("muted"),
        )  # fmt: skip
        self.log.pack(fill="x", pady=(0, px(8)))
        self.bar = ThinBar(footer, theme, on="window")
        self.bar.pack(fill="x")
        self.status = WrappedText(footer, theme, colour="label")
        self.status.pack(fill="x", pady=px(8))
        self.start_button = Button(footer, theme, "Start", self.start, style="primary", width=110)
        self.start_button.pack(side="right")
        self.stop_button = Button(footer, theme, "Stop", self.stop, width=90)
        self.stop_button.pack(side="right", padx=GAP)
        self.stop_button.set_enabled(False)
        scroll = ScrollFrame(self, theme)
        scroll.pack(fill="both", expand=True, padx=(px(PAD), 0))
        self.form = scroll.body
        self.form.columnconfigure(0, minsize=px(_LABEL_PX))
        self.form.columnconfigure(1, weight=1)
        labels = {name: spec.label for name, spec in self._specs.items()}
        self._add_row(Option("model", "Model", "", next(iter(labels)), labels), command=self._show_model)
        self.help = WrappedText(self.form, theme, role="small", colour="muted")
        self.help.grid(row=self.form.grid_size()[1], column=1, sticky="ew", pady=(0, px(4)))
        self.missing = WrappedText(self.form, theme, role="small", colour="warning")
        self.missing.grid(row=self.form.grid_size()[1], column=1, sticky="ew", pady=(0, px(8)))
        self._add_row(Option("mode", "Existing files", "", "skip", dict(modes)))
        for option in self._option_rows:
            self._add_row(option)
        self._add_row(Option("include_subfolders", "Include subfolders", "", self.source.include_subfolders))
        self._add_row(Option("device", "Device", "", "auto", _DEVICES))

    def _add_row(self, option: Option, command: Callable[[], object] | None = None) -> None:
        theme, row = self.theme, self.form.grid_size()[1]
        label = Text(self.form, theme, option.label, colour="label")
        label.grid(row=row, column=0, sticky="w", pady=theme.px(3))
        widget: Any
        if isinstance(option.default, bool):
            variable: Any = FlagVar(master=self, value=option.default)
            widget = Switch(self.form, theme, variable, on="window")
            sticky = "w"
        elif option.choices is not None:
            variable, sticky = TextVar(master=self, value=option.default), "ew"
            chosen = (lambda _name: command()) if command else None
            widget = Choice(self.form, theme, variable, option.choices, on="window", command=chosen)
        else:
            variable, sticky = TextVar(master=self, value=option.default), "ew"
            widget = Entry(self.form, theme, variable, on="window", placeholder=option.help)
        widget.grid(row=row, column=1, sticky=sticky, pady=theme.px(3))
        for part in (label, widget):
            self._context.tips.attach(part, lambda: option.help)
        self.variables[option.name] = variable
        self._rows[option.name] = [label, widget]

    @property
    def spec(self) -> CaptionerSpec | MaskerSpec:
        """The chosen model."""
        return self._specs[self.variables["model"].get()]

    def _show_model(self) -> None:
        """Show what the model is for, where its files are, and only the options that it uses."""
        spec = self.spec
        missing = [p for p in spec.packages if not p.is_installed]
        lines = [spec.help]
        if spec.files is not None:
            lines.append(f"Files: {spec.files.description}.{f' Licence: {spec.licence}.' if spec.licence else ''}")
        self.help.set_text("\n".join(lines))
        self.missing.set_text("\n".join(f"{p.install}." for p in missing))
        if missing:
            self.missing.grid()
        else:
            self.missing.grid_remove()
        for option in self._option_rows:
            for widget in self._rows[option.name]:
                if option.setting and option.setting not in spec.settings:
                    widget.grid_remove()
                else:
                    widget.grid()

    # -- running

    def start(self) -> None:
        """Check the options, ask before a download, and start the process."""
        if self.runner.state.is_active:
            return
        try:
            request = self._request()
        except ValueError as error:
            self._show_status(f"This is not a number: {error.args[0]!r}. Correct it and start again.", "error")
            return
        missing = [p for p in self.spec.packages if not p.is_installed]
        if missing:
            self._show_status(f"{missing[0].install}, or choose another model.", "error")
            return
        self.start_button.set_enabled(False)
        files = self.spec.files
        if files is None:
            self._launch(request, may_download=False)
        else:
            self._context.pump.background.run(
                lambda: find_place(files),
                lambda place: self._found(request, place),
                lambda _e: self._found(request, None),
            )

    def stop(self) -> None:
        """Stop after the current image."""
        self.runner.stop()

    def destroy(self) -> None:
        """Also end the process, after its current image; files that are written stay."""
        self._context.pump.remove_source(self.runner.drain)
        self._context.pump.forget(self)
        self.runner.close()
        super().destroy()

    def _found(self, request: CaptionRequest | MaskRequest, place: Path | None) -> None:
        if not self.winfo_exists():
            return
        if place is None and self.spec.files is not None:
            message = f"{self.spec.label} needs files that are not on this computer:\n{self.spec.files.description}"
            answers = (Answer("no", "Cancel"), Answer("download", "Download and start", is_default=True))
            if self._context.interaction.choose("Download the model?", message, answers) != "download":
                self.start_button.set_enabled(True)
                return
        self._launch(request, may_download=place is None)

    def _launch(self, request: CaptionRequest | MaskRequest, *, may_download: bool) -> None:
        if isinstance(request, MaskRequest):
            arguments = mask_arguments(request, may_download=may_download)
        else:
            arguments = caption_arguments(request, may_download=may_download)
        self.runner.start(f"Automatic {self.what}", arguments)

    def _request(self) -> CaptionRequest | MaskRequest:
        """Return what is entered. Raises ValueError with the text that is not a number."""
        value = {name: variable.get() for name, variable in self.variables.items()}
        shared: dict[str, Any] = {
            "folder": self.source.folder,
            "model": value["model"],
            "mode": value["mode"],
            "include_subfolders": value["include_subfolders"],
            "device": value["device"],
        }
        if self.what == "masks":
            found = MaskSettings(
                _parts(value["prompts"]), value["colour"], int(_number(value["tolerance"])), _number(value["threshold"])
            )
            return MaskRequest(
                **shared,
                masks_folder=self.source.masks_folder,
                expand_px=int(_number(value["expand_px"])),
                smooth_px=int(_number(value["smooth_px"])),
                share=_number(value["share"]),
                is_inverted=value["is_inverted"],
                settings=found,
            )
        settings = CaptionSettings(
            _number(value["threshold"]),
            _number(value["character_threshold"]),
            _parts(value["excluded_tags"]),
            value["keep_underscores"],
            value["initial"],
            value["detail"],
        )
        return CaptionRequest(
            **shared, extension=self.source.extension, prefix=value["prefix"], suffix=value["suffix"], settings=settings
        )

    def _show(self) -> None:
        state = self.runner.state
        self.bar.set(state.share)
        if state.failure is not None:
            self._show_status(f"{state.failure.message} {state.failure.advice}".strip(), "error")
        else:
            self._show_status(state.status, "label")
        self.log.configure(state="normal")
        self.log.delete("1.0", "end")
        self.log.insert("1.0", "\n".join(state.lines))
        self.log.see("end")
        self.log.configure(state="disabled")
        self.start_button.set_enabled(not state.is_active)
        self.stop_button.set_enabled(state.stage == "running")
        if not state.is_active:
            self._done()
            self._context.captions_changed()

    def _show_status(self, text: str, token: str) -> None:
        self.status.recolour(token)
        self.status.set_text(text)


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise ValueError(text) from None


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for piece in text.split(",") if (part := piece.strip()))
