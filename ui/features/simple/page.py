"""The page Train a LoRA: what a LoRA needs, each step with its state, its fields, and the buttons that change it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from functools import partial

from modules.config.presets import Preset
from modules.config.records import top_records
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.settings.edit import replace_value
from modules.system.paths import folder_for_images, from_root
from modules.system.problem import agree, count
from ui.features.simple.images import (
    result_named,
    with_folders,
    with_one_sentence,
    with_prompt,
    with_references,
    with_subfolders,
)
from ui.features.simple.looking import FirstLook
from ui.features.simple.model import STEPS, Choice, Progress, Step, has_field, image_concepts, is_demo, user_concepts
from ui.forms.changes import changes
from ui.forms.context import Context
from ui.forms.group_card import GroupCard
from ui.forms.layout import FormView
from ui.forms.page import PageFrame
from ui.forms.records import Group
from ui.forms.setting_pages import PageSpec
from ui.widgets.controls import Button
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP, PAD

_ASK_SENTENCE = (
    "Type the word that your LoRA should learn, one that means nothing yet, such as zog. Each image gets the caption "
    '"a photo of zog". Or type a whole sentence.'
)
_QUIET_SECONDS = 0.3
_IN_FIRST_COLUMN = 3  # steps
_ROOM_FOR_CHOICE, _ROOM_FOR_LINE = 46, 17  # design pixels: of one with two lines, and of one more about them
_SHOWN_AS_TEXT = ("concepts", "sampling.prompts", "model.family", "general.notes")


def hidden_changes(config: Config, baseline: Config) -> int:
    """Return how many changed settings the page does not show."""
    paths = (change.path for change in changes(config, baseline))
    fields = [path for path in paths if not any(f"{path}.".startswith(f"{shown}.") for shown in _SHOWN_AS_TEXT)]
    return sum(not has_field(config, path) for path in fields)


class StepCard(GroupCard):
    """A step: its title with a sign, its state, the choices until it is done, and its fields."""

    def __init__(self, master: tk.Misc, context: Context, step: Step, group: Group) -> None:
        super().__init__(master, context, group)
        self.step = step
        self.buttons: dict[str, Button] = {}
        self._drawn: tuple[object, ...] = ()
        self._reserved_px = 0  # for the state and the choices, while these are looked for
        theme, px = context.theme, context.theme.px
        header = Panel(self.card, theme, "card")
        header.pack(fill="x", padx=px(PAD), pady=(px(12), 0), before=self.card.body)
        self.card.body.pack_configure(pady=(0, px(6)))
        line = Panel(header, theme, "card")
        line.pack(fill="x")
        self.sign = Text(line, theme, role="heading", on="card")
        self.sign.pack(side="left", padx=(0, px(GAP)))
        Text(line, theme, step.title, role="heading", on="card").pack(side="left")
        for label, action in reversed(step.buttons):
            button = Button(line, theme, label, partial(context.actions.run, action), on="card", height=26)
            button.pack(side="right", padx=(GAP, 0))
            self.buttons[action] = button
        self.state = WrappedText(header, theme, on="card", colour="label")
        self.state.pack(fill="x", pady=(px(4), px(4)))
        self._choices = Panel(header, theme, "card", height=1)
        self._choices.columnconfigure(1, weight=1)

    def num_rows_shown(self) -> int:
        """Return the number of its fields, and one for the state."""
        return super().num_rows_shown() + 1

    def follow(self, progress: Progress, number: int, choose: Callable[[Choice], None]) -> None:
        """Show the state of the step."""
        is_done = self.step.is_done(progress)
        self.sign.set_text("✓" if is_done else f"{number}")
        self.sign.recolour("good" if is_done else "accent")
        text = self.step.describe(progress)
        self.state.set_text(text)
        self.state.recolour("warning" if self.step.is_wrong(progress) else "label")
        choices = () if is_done else self.step.choices(progress)
        if (text, choices) != self._drawn:  # another text is another state, in which no room is kept
            self._drawn = text, choices
            self._draw_choices(choices, choose)
            self._reserved_px = 0
        if not choices and not is_done and (number_awaited := self.step.awaits_choices(progress)):
            # What is below must not move under the pointer when they come, also fewer than that.
            room = self._context.theme.px(_ROOM_FOR_CHOICE * number_awaited + _ROOM_FOR_LINE)
            self._reserved_px = self.state.winfo_reqheight() + room
            self._choices.configure(height=room)
            self._choices.pack(fill="x", pady=(self._context.theme.px(4), 0))
        elif not choices:
            self._choices.pack_forget()

    def _draw_choices(self, choices: tuple[Choice, ...], choose: Callable[[Choice], None]) -> None:
        """Draw the choices below each other, each with its meaning next to its button."""
        theme, px = self._context.theme, self._context.theme.px
        for child in self._choices.winfo_children():
            child.destroy()
        self._choices.pack_forget()
        for row, choice in enumerate(choices):
            button = Button(self._choices, theme, choice.label, partial(choose, choice), on="card")
            tk.Grid.grid_configure(button, row=row, column=0, sticky="new", pady=(0, px(GAP)))
            label = WrappedText(self._choices, theme, choice.text, role="small", colour="muted", on="card")
            label.grid(row=row, column=1, sticky="ew", padx=(px(12), 0), pady=(0, px(GAP)))
            self.buttons[choice.label] = button
        if choices:
            room = max(1, self._reserved_px - self.state.winfo_reqheight())
            strut = Panel(self._choices, theme, "card", width=1, height=room)
            strut.grid(row=0, column=2, rowspan=len(choices) + 1)
            self._choices.rowconfigure("all", weight=0)
            self._choices.rowconfigure(len(choices), weight=1)
            self._choices.pack(fill="x", pady=(px(4), 0))


class StepForm(FormView):
    """The cards of the steps in their order, down the first column and then down the second."""

    def __init__(self, master: tk.Misc, context: Context, drawn: Callable[[], None]) -> None:
        self._drawn = drawn
        self._steps = {step.title: step for step in STEPS}
        super().__init__(master, context, lambda: _groups(context.form.config), max_columns=2)

    def _make_card(self, group: Group) -> GroupCard:
        return StepCard(self, self._context, self._steps[group.key], group)

    def _build(self) -> Iterator[None]:
        yield from super()._build()
        self._drawn()

    def _places(self, num_columns: int, width: int, room: int) -> list[int]:
        return [int(num_columns > 1 and number >= _IN_FIRST_COLUMN) for number in range(len(self.cards))]


def _groups(config: Config) -> tuple[Group, ...]:
    records = top_records(type(config))
    return tuple(Group(step.title, "", tuple(records[path] for path in step.fields)) for step in STEPS)


class SimplePage:
    """Follows the config; images and this computer are looked at in the background while the page is open."""

    def __init__(self, master: tk.Misc, context: Context, spec: PageSpec) -> None:
        self.frame = PageFrame(master, context, spec)
        self.scroll = self.frame.add_scroll(context)
        self._context = context
        self._named = ""  # the destination as it was named after the folder of images
        self._look = FirstLook(context.pump.background)
        self._by_choice: dict[str, Callable[[], object]] = {
            "folders": self._add_folders,
            "subfolders": self._use_subfolders,
            "references": self._add_references,
            "write": lambda: self._context.links.write_captions(next(iter(self._without_captions()), None)),
            "sentence": self._write_one_sentence,
            "prompt": lambda: self._context.form.replace(
                with_prompt(self._context.form.config, self._look.counted.caption)
            ),
            "fit": partial(context.actions.run, "fit"),
        }
        self.form_view = StepForm(self.scroll.body, context, self._soon)
        self.form_view.grid(row=0, column=0, sticky="new")
        self._more = Panel(self.scroll.body, context.theme)
        self.show_button = Button(
            self._more, context.theme, "Show all settings", partial(context.actions.run, "simple_view")
        )
        self.show_button.pack(side="right")
        self.hidden = WrappedText(self._more, context.theme, colour="muted")
        self.hidden.pack(side="left", fill="x", expand=True)
        for signal in (context.form.changed, context.form.loaded, self._look.changed):
            signal.subscribe(self._soon)
        context.form.loaded.subscribe(self._keep_name)
        context.captions_changed.subscribe(self._count_again)
        self.form_view.build()

    def on_show(self) -> None:
        """Count the images once more: captions may have been written on another page."""
        self._count_again()

    def show_field(self, path: str) -> bool:
        """Show a field regardless of its level, scroll to it and focus it."""
        return self.form_view.reveal(path) is not None

    @property
    def cards(self) -> dict[str, StepCard]:
        """The cards by the titles of their steps."""
        return {card.step.title: card for card in self.form_view.cards if isinstance(card, StepCard)}

    def _soon(self) -> None:
        if self.frame.is_shown:
            self._context.pump.redraw_soon(self, self._refresh)

    def _refresh(self) -> None:
        context, look = self._context, self._look
        self._name_after_folder()
        # Once the window is drawn, which the imports of the estimates would slow down.
        context.pump.redraw_soon((self, "computer"), look.find_machine, quiet_seconds=_QUIET_SECONDS)
        look.find_presets(context.form.config)
        progress = self._progress()
        look.count(image_concepts(progress), user_concepts(progress))
        if look.counted.images:
            look.measure(context.form.config)
        progress = self._progress()
        for number, card in enumerate(self.cards.values(), start=1):
            card.follow(progress, number, self._choose)
        self._show_hidden()

    def _show_hidden(self) -> None:
        """Count the changed settings that only the full view shows."""
        form = self._context.form
        baseline = form.baseline if form.source.kind in ("built_in", "preset") else Config()
        number = hidden_changes(form.config, baseline)
        what = "edited since the preset was loaded" if baseline is form.baseline else "not at the default"
        is_or_are = agree(number, "is")
        self.hidden.set_text(f"{count(number, 'setting')} of this config {is_or_are} {what}, and not shown here.")
        if number:
            self._more.grid(row=1, column=0, sticky="ew", pady=(0, self._context.theme.px(PAD)))
        else:
            self._more.grid_remove()

    def _choose(self, choice: Choice) -> None:
        """Do what was chosen: load a preset, set a length, or what `_by_choice` names."""
        if isinstance(choice.value, Preset):
            self._context.documents.open_preset(choice.value)
            return
        if isinstance(choice.value, str):
            self._by_choice[choice.value]()
            return
        from trainer.preflight.subject_length import with_epochs

        self._context.form.replace(with_epochs(self._context.form.config, choice.value))
        self._context.notify(f"{choice.label}: {choice.text} Ctrl+Z undoes it.")

    def _add_folders(self) -> None:
        context = self._context
        folders = context.interaction.ask_folders(
            "Add folders of images", folder_for_images(c.path for c in image_concepts(self._progress()))
        )
        if folders:
            form = context.form
            example = form.baseline if is_demo(form.source) else None
            before = form.config.output.destination
            form.replace(with_folders(form.config, folders, example=example))
            if form.config.output.destination != before:
                self._named = form.config.output.destination

    def _name_after_folder(self) -> None:
        """Give the result the name of another folder, unless the user has named it."""
        form, concepts = self._context.form, image_concepts(self._progress())
        if not concepts or form.config.output.destination != self._named:
            return
        named = result_named(self._named, from_root(concepts[0].path).name)
        if named != self._named:
            self._named = named
            form.replace(replace_value(form.config, "output.destination", named))

    def _keep_name(self) -> None:
        """Leave the name in a config that was loaded as it is."""
        self._named = ""

    def _use_subfolders(self) -> None:
        form = self._context.form
        form.replace(with_subfolders(form.config, self._look.concepts_where(lambda c: c.in_subfolders > 0)))

    def _add_references(self) -> None:
        context, changed = self._context, self._look.concepts_where(lambda c: c.references < c.images)
        folder = context.interaction.ask_folder(
            "The images before the edit", folder_for_images(concept.path for concept in changed)
        )
        if folder is not None:
            context.form.replace(with_references(context.form.config, changed, folder))

    def _write_one_sentence(self) -> None:
        """Ask for the word or the sentence, and make it the caption of the images without one."""
        context = self._context
        text = context.interaction.ask_text("One sentence for all", _ASK_SENTENCE, "")
        if text is None or not text.strip():
            return
        form, changed = context.form, self._without_captions()
        default_name = form.baseline.output.destination
        config, caption = with_one_sentence(form.config, changed, text, default_name=default_name)
        context.form.replace(config)
        context.notify(f"The caption of your images: {caption}. Ctrl+Z undoes it.")

    def _without_captions(self) -> tuple[Concept, ...]:
        return self._look.concepts_where(lambda c: c.captions < c.images)

    def _count_again(self) -> None:
        self._look.count_again()
        self._soon()

    def _progress(self) -> Progress:
        form, look = self._context.form, self._look
        return Progress(
            form.config,
            form.source,
            form.baseline,
            look.counted,
            here=look.here,
            samples_per_epoch=look.samples_per_epoch,
            steps_per_epoch=look.steps_per_epoch,
        )
