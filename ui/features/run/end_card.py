"""The card at the end of a run: samples of the result next to the first ones, and what comes next."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from modules.model_finder.programs import COMFYUI, ProgramFolder, find_programs, program_at
from modules.system.problem import format_size
from ui.features.run.ending import MAX_PAIRS, EndFacts, Pair, RunEnd, end_of, look_at, pairs_of
from ui.features.run.model import Starter
from ui.features.run.program_copy import ProgramCopy, copy_into
from ui.forms.context import Context
from ui.loop.background import Job
from ui.loop.interaction import REPLACE_FILE, Answer, Failure
from ui.loop.run_state import RunState
from ui.widgets.card import Card
from ui.widgets.controls import Button
from ui.widgets.fitted_text import FittedText, FittedTexts
from ui.widgets.panel import Panel, Text
from ui.widgets.photos import Photos
from ui.widgets.theme import GAP, PAD, is_low

_SIDE_PX = 92
_CHECKPOINTS_TIP = (
    "Compare the saves and backups of the run with the same prompts, and choose another one as the result"
)
_NOT_COPIED = "The model was not copied"
_COPY = "Copy to ComfyUI"


class EndCard(Card):
    """Call `follow` after a change of the run; the card shows itself for one that has finished with a result.

    It calls `read` once it has read what the disk has of it: then follow again. A low window shows it without the
    samples.
    """

    def __init__(
        self,
        master: tk.Misc,
        context: Context,
        *,
        open_sample: Callable[[Path], object],
        read: Callable[[], object],
    ) -> None:
        super().__init__(master, context.theme)
        self.end: RunEnd | None = None
        self.facts: EndFacts | None = None
        self.pairs: list[Pair] = []
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._open_sample, self._read = open_sample, read
        self._dismissed: RunEnd | None = None
        self._samples: Sequence[object] = ()
        self._copied = ""  # where the result was copied, as a sentence
        self._copying: Job | None = None
        self._photos = Photos(self, context.pump, self._draw_photos, most=2 * MAX_PAIRS)
        self._images: dict[Path, Text] = {}
        self._add_header()
        self.strip = Panel(self.body, context.theme, "card")
        self.bind("<Destroy>", lambda event: self._photos.close() if event.widget is self else None, add="+")

    def follow(self, state: RunState, *, is_active: bool, result_step: int | None = None) -> None:
        """Show the end of a run, or hide the card. `result_step` is the step of a later choice of the result."""
        end = None if is_active else end_of(state)
        if end is not None and result_step is not None:
            end = replace(end, step=result_step)
        if end != self.end:
            self.end, self.facts, self._copied = end, None, ""
            if end is not None and end != self._dismissed:
                self._context.pump.background.run(partial(look_at, end), partial(self._keep, end))
        if end is None or self.facts is None or end == self._dismissed:
            self.pack_forget()
            return
        self._show_texts(end, f"{end.message} {self.facts.text}{self._copied}")
        if state.samples is not self._samples:
            self._samples = state.samples
            self.pairs = pairs_of(state.samples, end, self.facts.starred)
            self._show_pairs()
        self._fit()
        if not self.winfo_manager():
            tk.Pack.pack_configure(self, fill="x", pady=(0, self._px(PAD)))

    # -- what comes next

    def try_it(self) -> None:
        """Open the Generate page with the result."""
        if self.facts is not None and self.facts.sampled is not None:
            self._context.links.try_result(self.facts.sampled)

    def compare_checkpoints(self) -> None:
        """Open the window that compares all checkpoints of the run."""
        if self.end is not None:
            self._context.links.compare_checkpoints((self.end.run_dir,))

    def show_file(self) -> None:
        """Open the folder of the result."""
        if self.end is not None:
            self._context.interaction.open_path(self.end.result.parent)

    def copy(self) -> None:
        """Copy the result into ComfyUI, whose folder is found, or else asked for and remembered; or stop the copy."""
        if self._copying is not None:
            self._copying.cancel()
            self._end_copy(" The copy was stopped.")
            return
        if self.end is None or not self._may_copy(self.end):
            return
        named = [Path(name) for name in self._context.preferences.now.model_folders]
        self._work(partial(_find_comfyui, named), self._copy_into)

    def train_longer(self) -> None:
        """Ask for a number of epochs, and resume the run from its last backup."""
        end, facts = self.end, self.facts
        if end is None or facts is None or facts.backup is None:
            return
        starter, context = self._context.models.of(Starter), self._context
        starter.ask_longer(facts.backup, end.epochs, end.result.name, context.notify, stopped_early=end.stopped_early)

    def dismiss(self) -> None:
        """Hide the card for this run."""
        self._dismissed = self.end
        self.pack_forget()

    def _may_copy(self, end: RunEnd) -> bool:
        """Ask about a result that ComfyUI does not load completely."""
        reason = dict(end.doubts).get(COMFYUI.label)
        if reason is None:
            return True
        message = f"ComfyUI does not load all of {end.result.name}{f': {reason}' if reason else ''}."
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("copy", "Copy it all the same"))
        return self._context.interaction.choose("Copy it all the same?", message, answers, "warning") == "copy"

    def _copy_into(self, places: tuple[ProgramFolder | None, Path]) -> None:
        known, proposed = places
        program = known or self._ask_for_comfyui(proposed)
        if self.end is None or self.facts is None or program is None:
            return
        result, kind = self.end.result, self.facts.kind

        def plan() -> tuple[ProgramCopy, bool, tuple[Path, ...]]:
            planned = copy_into(program, result, kind)
            return planned, planned.is_there, planned.taken

        self._work(plan, self._copy_unless_taken)

    def _ask_for_comfyui(self, proposed: Path) -> ProgramFolder | None:
        """Ask for the folder of ComfyUI and remember it; None if the user cancels, or if it is of something else."""
        folder = self._context.interaction.ask_folder("The folder of ComfyUI", proposed)
        program = program_at(folder) if folder is not None else None
        if folder is not None and (program is None or program.program is not COMFYUI):
            missing = " and ".join(COMFYUI.marks)
            message = f"{folder} is not the folder of ComfyUI: {missing} are not in it."
            again = "Choose the folder that contains them. It is usually named ComfyUI."
            failure = Failure(_NOT_COPIED, message, again, offer="Choose again…")
            return self._ask_for_comfyui(folder) if self._context.interaction.show_failure(failure) else None
        if folder is not None:
            self._context.preferences.note_model_folder(folder)
        return program

    def _copy_unless_taken(self, planned: tuple[ProgramCopy, bool, tuple[Path, ...]]) -> None:
        copy, is_there, taken = planned
        if is_there:
            self._copied = f" {COMFYUI.label} has it already, as {copy.destination.name}."
            self._read()
            return
        if taken:
            message = f"{taken[0]} is another file."
            answers = (
                Answer("cancel", "Cancel"),
                Answer("replace", "Replace it"),
                Answer("keep", "Keep both", is_default=True),
            )
            answer = self._context.interaction.choose(REPLACE_FILE, message, answers)
            if answer not in ("replace", "keep"):
                return
            copy = copy.with_free_names() if answer == "keep" else copy
        self._show_progress("", 0, 0)
        self.buttons["copy"].configure(text="Stop")
        target = f"{copy.destination.parent.name}/{copy.destination.name}"
        self._copying = self._context.pump.background.run_reporting(
            copy.write,
            lambda _done: self._end_copy(f" Copied to {COMFYUI.label}: {target}."),
            self._fail_copy,
            progress=self._show_progress,
        )

    def _show_progress(self, _what: str, done: int, total: int) -> None:
        share = f" {format_size(done)} of {format_size(total)}" if total else ""
        self._show_copied(f" Copying to {COMFYUI.label}…{share}")

    def _end_copy(self, outcome: str) -> None:
        self._copying = None
        if self.winfo_exists():
            self.buttons["copy"].configure(text=_COPY)
        self._show_copied(outcome)

    def _fail_copy(self, error: Exception) -> None:
        self._end_copy("")
        self._context.show_error(_NOT_COPIED, error, advice="Nothing was replaced.")

    def _show_copied(self, outcome: str) -> None:
        if self.winfo_exists():
            self._copied = outcome
            self._read()

    def _work(self, work: Callable[[], object], done: Callable[..., object]) -> None:
        """Work in the background, with the button disabled until then."""
        button = self.buttons["copy"]
        button.set_enabled(False)

        def finish(result: object) -> None:
            if self.winfo_exists():
                button.set_enabled(True)
                done(result)

        def fail(error: Exception) -> None:
            if self.winfo_exists():
                button.set_enabled(True)
                self._copied = ""
                self._read()
            self._context.show_error(_NOT_COPIED, error, advice="Nothing was replaced.")

        self._context.pump.background.run(work, finish, fail)

    # -- drawing

    def _px(self, size: int) -> int:
        return self._context.theme.px(size)

    def _add_header(self) -> None:
        context = self._context
        header = Panel(self.body, context.theme, "card")
        header.pack(fill="x", padx=(self._px(12), 0))
        row = Panel(header, context.theme, "card")
        row.pack(side="right")
        self._header, self._row = header, row
        header.bind("<Configure>", lambda _e: self._read(), add="+")
        for name, label, press, tip in (
            ("try", "Try it", self.try_it, "Sample it on the Generate page"),
            ("checkpoints", "Checkpoints…", self.compare_checkpoints, _CHECKPOINTS_TIP),
            ("copy", _COPY, self.copy, "Copy it into the folder of ComfyUI for such files"),
            ("show", "Show file", self.show_file, "Open the folder that it is in"),
            ("longer", "Train longer…", self.train_longer, "Continue this run for more epochs, from its last backup"),
            ("close", "Close", self.dismiss, "Hide this card"),
        ):
            style = "primary" if name == "try" else "ghost" if name == "close" else "plain"
            button = Button(row, context.theme, label, press, style=style, on="card")  # type: ignore[arg-type]
            button.pack(side="left", padx=(GAP, 0))
            context.tips.attach(button, partial(self._tip_of, name, tip))
            self.buttons[name] = button
        self.title = Text(header, context.theme, role="heading", on="card")
        self.title.pack(side="left")
        self.text = FittedText(self.body, context.theme, "", on="card", colour="muted")
        self.text.pack(fill="x", padx=(self._px(12), 0))
        context.tips.attach(self.text, lambda: self.text.hidden_text)

    def _show_texts(self, end: RunEnd, text: str) -> None:
        """Show the name of the result in the title, or before the text if the buttons leave the title no room."""
        title = f"{end.result.name} is ready"
        width = self._header.winfo_width()
        room = width - self._row.winfo_reqwidth() - self._px(GAP)
        is_narrow = width > 1 and room < FittedTexts(self, self._context.theme).width(title, "heading")
        self.title.set_text("Ready" if is_narrow else title)
        self.text.show(f"{end.result.name}: {text}" if is_narrow else text)

    def _tip_of(self, name: str, tip: str) -> str:
        if name == "longer" and self.facts is not None and self.facts.backup is None:
            return "No backup of this run is on this computer."
        return tip

    def _keep(self, end: RunEnd, facts: EndFacts | None) -> None:
        if end != self.end or not self.winfo_exists():
            return
        self.facts, self._samples = facts, ()
        self.buttons["try"].set_enabled(facts is not None and facts.sampled is not None)
        self.buttons["longer"].set_enabled(facts is not None and facts.backup is not None)
        self._read()

    def _show_pairs(self) -> None:
        theme, side = self._context.theme, self._px(_SIDE_PX)
        for old in self.strip.winfo_children():
            old.destroy()
        self._images = {}
        for pair in self.pairs:
            box = Panel(self.strip, theme, "card")
            box.pack(side="left", padx=(0, self._px(PAD + 4)))
            samples = [s for s in (pair.before, pair.after) if s is not None]
            for column, sample in enumerate(samples):
                path = Path(sample.path)
                star = "★ " if pair.is_starred and sample is pair.after else ""
                frame = Panel(box, theme, "field", width=side, height=side)  # until the image is loaded
                frame.pack_propagate(flag=False)
                frame.grid(row=0, column=column, padx=(0, self._px(4)))
                image = Text(frame, theme, on="field", anchor="center")
                image.pack(fill="both", expand=True)
                image.configure(cursor="hand2")
                image.bind("<Button-1>", lambda _e, path=path: self._open_sample(path))  # type: ignore[misc]
                label = Text(box, theme, f"{star}Step {sample.step:,}", role="small", colour="muted", on="card")
                label.grid(row=1, column=column, sticky="w")
                self._images[path] = image
            self._context.tips.attach(box, lambda pair=pair: pair.after.prompt)  # type: ignore[misc]
        self._draw_photos()

    def _draw_photos(self) -> None:
        side = self._px(_SIDE_PX)
        for path, label in self._images.items():
            key = (path, side)
            photo = self._photos.get(key)
            if photo is None:
                self._photos.load(key)
            elif label.winfo_exists():
                label.configure(image=photo)

    def _fit(self) -> None:
        """Show the samples if there is room for them."""
        has_room = bool(self.pairs) and not is_low(self._context.root.winfo_height(), self._context.theme)
        if has_room and not self.strip.winfo_manager():
            self.strip.pack(fill="x", padx=(self._px(12), 0), pady=(self._px(10), 0))
        elif not has_room:
            self.strip.pack_forget()


def _find_comfyui(named: Sequence[Path]) -> tuple[ProgramFolder | None, Path]:
    """Return ComfyUI where it may be written to, and the folder to propose: a settings file decides no destination."""
    known, others = (
        [found for found in find_programs(named, reads_settings=reads) if found.program is COMFYUI]
        for reads in (False, True)
    )
    return next(iter(known), None), others[0].path if others else Path.home()
