"""The card with the steps of a way to begin, which is chosen on Home; a line in a low window."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial

from modules.config.presets import Preset
from ui.features.first_steps.images import with_folders, with_one_sentence, with_prompt
from ui.features.first_steps.looking import FirstLook
from ui.features.first_steps.model import (
    HIDDEN,
    WAYS,
    Choice,
    Progress,
    Step,
    Way,
    current_step,
    image_concepts,
)
from ui.forms.context import Context
from ui.forms.setting_pages import HOME
from ui.widgets.card import Card
from ui.widgets.controls import Button, ButtonStyle
from ui.widgets.fitted_text import FittedText
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import CONTROL_HEIGHT, GAP, PAD, is_low

_DONE = "You have been through all of it. Home has these ways to begin again."
_ASK_SENTENCE = (
    "Type the word that your LoRA should learn, one that means nothing yet, such as zog. Each image gets the caption "
    '"a photo of zog". Or type a whole sentence.'
)
_LOW_BUTTON = 24
_QUIET_SECONDS = 0.3
_LEAST_TEXT = 120  # of a line, in design pixels, next to its buttons
_LEAST_COLUMNS = 3  # of choices: a single one is no wider than one of three


class FirstStepsBar(Panel):
    """Shown below the top bar until it is closed; the preferences hold what it shows."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme, "window")
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._drawn_state: tuple[object, ...] = ()
        self._skipped_titles: frozenset[str] = frozenset()
        self._look = FirstLook(context.pump.background)
        self._length_for = 0
        self._by_choice: dict[str, Callable[[], None]] = {
            "folders": self._add_folders,
            "write": self._write_captions,
            "sentence": self._write_one_sentence,
            "prompt": self._add_prompt,
        }
        for signal in (
            context.preferences.changed,
            context.form.changed,
            context.session.changed,
            context.starter.changed,
            context.field_problems.changed,
        ):
            signal.subscribe(lambda: context.pump.redraw_soon(self, self.refresh))
        self._look.changed.subscribe(self._refresh_if_open)
        context.navigation.page_wanted.subscribe(lambda _page: self._count_again())
        context.captions_changed.subscribe(self._count_again)

    def refresh(self) -> None:
        """Show the steps of the chosen way; draw only what has changed."""
        context = self._context
        state = context.preferences.now.first_steps
        way = WAYS.get(state)
        if way is None or self._is_out_of_place():
            self._drawn_state = ()
            self.grid_remove()
            return
        # Once the window is drawn, which the imports of the estimates would slow down.
        context.pump.redraw_soon((self, "computer"), self._look.find_machine, quiet_seconds=_QUIET_SECONDS)
        if state == "images":
            self._look.count(image_concepts(self._progress()))
            self._look.find_presets(context.form.config)
        progress = self._progress()
        current = current_step(way, progress)
        step = way.steps[current] if current < len(way.steps) else None
        text = step.instruction(progress) if step is not None else _DONE
        low = is_low(context.root.winfo_height(), context.theme)
        choices = step.choices(progress) if step is not None else ()
        state_to_draw = (state, current, text, low, context.navigation.page, choices)
        if state_to_draw != self._drawn_state:
            self._drawn_state = state_to_draw
            self._draw(way, current, text, choices, is_compact=low)
        self.grid()

    def _is_out_of_place(self) -> bool:
        """Return whether a run is active: the last step of a way, to watch it, is for the Run page."""
        return self._context.session.is_active and self._context.navigation.page != "run"

    def close(self) -> None:
        """Hide the card until a way is chosen on Home."""
        self._context.preferences.change(first_steps=HIDDEN)

    def _draw(self, way: Way, current: int, text: str, choices: tuple[Choice, ...], *, is_compact: bool) -> None:
        for child in self.winfo_children():
            child.destroy()
        self.buttons = {}
        px = self._context.theme.px
        if is_compact:
            line = Panel(self, self._context.theme, "card")
            line.pack(fill="x", padx=px(PAD + 4), pady=(px(4), 0))
            self._draw_line(line, way, current, text, choices)
            return
        card = Card(self, self._context.theme)
        tk.Pack.pack_configure(card, fill="x", padx=px(PAD + 4), pady=(px(10), 0))
        body = Panel(card.body, self._context.theme, "card")
        body.pack(fill="x", padx=(px(12), 0))
        self._draw_steps(body, way, current, text, choices)

    def _draw_line(self, line: Panel, way: Way, current: int, text: str, choices: tuple[Choice, ...]) -> None:
        """Draw it in a line, for a low window, or in two where it is narrow, too: the tooltips have the rest."""
        theme, px = self._context.theme, self._context.theme.px
        words, buttons = Panel(line, theme, "card"), Panel(line, theme, "card")
        line.columnconfigure(0, weight=1)
        words.grid(row=0, column=0, sticky="ew")
        for choice in choices:
            button = self._add_choice(buttons, way.steps[current], choice, height=_LOW_BUTTON)
            button.pack(side="left", padx=(GAP, 0))
            self._context.tips.attach(button, lambda text=choice.text: text)  # type: ignore[misc]
        self._add_step_buttons(buttons, way, current, height=_LOW_BUTTON, is_primary=not choices)
        is_over = current >= len(way.steps)
        title = way.label if is_over else f"{current + 1} of {len(way.steps)}  {way.steps[current].title}"
        heading = Text(words, theme, title, role="strong", on="card")
        heading.pack(side="left", padx=(px(12), px(GAP)), pady=px(4))
        label = FittedText(words, theme, text, colour="label", on="card")
        label.pack(side="left", fill="x", expand=True, padx=(0, px(GAP)))
        self._context.tips.attach(label, lambda: label.hidden_text)

        def fit(width: int) -> None:
            needed = heading.winfo_reqwidth() + px(_LEAST_TEXT) + buttons.winfo_reqwidth()
            row, column = (1, 0) if needed > width else (0, 1)
            buttons.grid(row=row, column=column, sticky="e", padx=px(GAP), pady=(0 if row else px(4), px(4)))

        line.bind("<Configure>", lambda event: fit(event.width))
        fit(self.winfo_width())

    def _draw_steps(self, body: Panel, way: Way, current: int, text: str, choices: tuple[Choice, ...]) -> None:
        theme, px = self._context.theme, self._context.theme.px
        body.columnconfigure(0, weight=1)
        header = Panel(body, theme, "card")
        header.grid(row=0, column=0, columnspan=2, sticky="ew")
        Text(header, theme, way.label, role="heading", on="card").pack(side="left", padx=(0, px(PAD)))
        for number, step in enumerate(way.steps):
            sign = "✓" if number < current else f"{number + 1}"
            colour = "good" if number < current else "accent" if number == current else "faint"
            Text(header, theme, f"{sign}  {step.title}", colour=colour, on="card").pack(side="left", padx=(0, px(14)))
        label = WrappedText(body, theme, text, colour="label", on="card")
        label.grid(row=1, column=0, sticky="ew", pady=(px(4), 0))
        buttons = Panel(body, theme, "card")
        buttons.grid(row=1, column=1, sticky="e", padx=(px(PAD), 0))
        self._add_step_buttons(buttons, way, current, is_primary=not choices)
        if choices:
            self._draw_choices(body, way.steps[current], choices)

    def _draw_choices(self, body: Panel, step: Step, choices: tuple[Choice, ...]) -> None:
        """Draw the choices of a step next to each other, with what each means below its button."""
        theme, px = self._context.theme, self._context.theme.px
        row = Panel(body, theme, "card")
        row.grid(row=2, column=0, columnspan=2, sticky="ew", pady=(px(8), 0))
        for column in range(max(len(choices), _LEAST_COLUMNS)):
            row.columnconfigure(column, weight=1, uniform="choices")
        for column, choice in enumerate(choices):
            gap = (0, px(PAD) if column + 1 < len(choices) else 0)
            button = self._add_choice(row, step, choice, is_primary=column == 0 and not isinstance(choice.value, int))
            tk.Grid.grid_configure(button, row=0, column=column, sticky="ew", padx=gap)
            label = WrappedText(row, theme, choice.text, role="small", colour="muted", on="card")
            label.grid(row=1, column=column, sticky="new", padx=gap, pady=(px(4), 0))

    def _add_step_buttons(
        self, box: Panel, way: Way, current: int, *, height: int = CONTROL_HEIGHT, is_primary: bool = True
    ) -> None:
        step = way.steps[current] if current < len(way.steps) else None
        if step is not None and step.page != self._context.navigation.page:
            go = self._add_button(box, "go", step.button, partial(self._go, step), is_primary=is_primary, height=height)
            go.pack(side="left", padx=(GAP, 0))
        if step is not None and step.can_be_skipped:
            skip = self._add_button(box, "skip", "Skip", partial(self._skip, step), height=height)
            skip.pack(side="left", padx=(GAP, 0))
        for name, label, run in (("back", "Other ways", self._back), ("close", "Close", self.close)):
            self._add_button(box, name, label, run, height=height).pack(side="left", padx=(GAP, 0))

    def _add_choice(
        self, master: tk.Misc, step: Step, choice: Choice, *, is_primary: bool = False, height: int = CONTROL_HEIGHT
    ) -> Button:
        run = partial(self._choose_in_step, step, choice)
        return self._add_button(master, choice.label, choice.label, run, is_primary=is_primary, height=height)

    def _add_button(
        self,
        master: tk.Misc,
        name: str,
        label: str,
        run: Callable[[], object],
        *,
        is_primary: bool = False,
        height: int = CONTROL_HEIGHT,
    ) -> Button:
        style: ButtonStyle = "primary" if is_primary else "plain"
        button = Button(master, self._context.theme, label, run, style=style, on="card", height=height)
        self.buttons[name] = button
        return button

    def _go(self, step: Step) -> None:
        if step.action:
            self._context.actions.run(step.action)
        else:
            self._context.navigation.open(step.page)

    def _choose_in_step(self, step: Step, choice: Choice) -> None:
        """Do what was chosen: load a preset, set a length, or what `_by_choice` names."""
        if isinstance(choice.value, Preset):
            self._context.documents.open_preset(choice.value)
            return
        if isinstance(choice.value, str):
            self._by_choice[choice.value]()
            return
        from trainer.preflight.subject_length import with_epochs

        self._length_for = self._progress().num_images
        self._context.form.replace(with_epochs(self._context.form.config, choice.value))
        self._context.notify(f"{choice.label}: {choice.text} Ctrl+Z undoes it.")
        self.refresh()

    def _write_captions(self) -> None:
        self._context.links.write_captions(next(iter(self._look.without_captions), None))

    def _add_folders(self) -> None:
        context = self._context
        folders = context.interaction.ask_folders("Add folders of images", context.preferences.last_folder)
        if folders:
            context.form.replace(with_folders(context.form.config, folders))

    def _add_prompt(self) -> None:
        self._context.form.replace(with_prompt(self._context.form.config, self._look.caption))

    def _write_one_sentence(self) -> None:
        """Ask for the word or the sentence, and make it the caption of the images without one."""
        context = self._context
        text = context.interaction.ask_text("One sentence for all", _ASK_SENTENCE, "")
        if text is None or not text.strip():
            return
        config, caption = with_one_sentence(context.form.config, self._look.without_captions, text)
        context.form.replace(config)
        context.notify(f"The caption of your images: {caption}. Ctrl+Z undoes it.")

    def _skip(self, step: Step) -> None:
        self._skipped_titles |= {step.title}
        self.refresh()

    def _back(self) -> None:
        self.close()
        self._context.navigation.open(HOME)

    def _refresh_if_open(self) -> None:
        if self.winfo_exists():
            self.refresh()

    def _count_again(self) -> None:
        """Count once more: captions were written, or a page was opened on which they can be."""
        if self.winfo_exists():
            self._look.count_again()
            self._context.pump.redraw_soon(self, self.refresh)

    def _progress(self) -> Progress:
        context, state = self._context, self._context.session.state
        report = context.starter.current_report
        return Progress(
            context.form.config,
            context.form.source,
            context.form.baseline,
            num_errors=len(context.field_problems.errors) + (len(report.errors) if report is not None else 0),
            has_started=context.session.is_active or state.started is not None,
            has_finished=state.finished is not None,
            num_images=self._look.num_images,
            num_captions=self._look.num_captions,
            here=self._look.here,
            caption=self._look.caption,
            samples_per_epoch=self._look.samples_per_epoch,
            length_for=self._length_for,
            skipped=self._skipped_titles,
        )
