"""The preset manager, and the list in which a preset is searched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from modules.config.own_presets import (
    DeletedPreset,
    delete_preset,
    describe_preset,
    duplicate_preset,
    rename_preset,
    restore_preset,
)
from modules.config.presets import Preset
from modules.system import hardware
from modules.system.errors import DarkroomError
from modules.system.problem import count
from ui.features.presets.model import (
    PresetRow,
    by_model,
    difference_rows,
    find_presets,
    first_line,
    for_card,
    needs_larger_card,
    preset_groups,
    preset_rows,
)
from ui.forms.context import Context
from ui.forms.model import Source
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.entry import Entry
from ui.widgets.panel import Text, WrappedText
from ui.widgets.search_window import Rows, SearchWindow
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_COLUMNS = (
    Column("#0", "Preset", 230),
    Column("kind", "Kind", 70),
    Column("family", "Family", 176),
    Column("trains", "Trains", 84),
    Column("memory", "For a card of", 96),
    Column("notes", "Description", 300, is_stretched=True, is_fitted=True),
)
_COMPARISON_COLUMNS = (
    Column("#0", "Setting", 290, is_stretched=True),
    Column("one", "", 220, is_fitted=True),
    Column("other", "", 220, is_fitted=True),
)


class Presets(Window):
    """Return or a double click loads; Delete deletes own presets, which can be undone."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Presets")
        self.rows: list[PresetRow] = []
        self.visible: list[PresetRow] = []
        self._all: list[PresetRow] = []
        self._context = context
        self._trashed: list[list[DeletedPreset]] = []  # of each deletion
        self._path_to_select = context.form.source.path
        px = context.theme.px
        self.find = TextVar(master=self)
        Entry(self, context.theme, self.find, on="window", placeholder="Find a preset").pack(
            fill="x", padx=px(PAD), pady=(px(PAD), px(10))
        )
        self.find.trace_add("write", lambda *_: self._show_matches())
        self._add_buttons()
        self.notes = WrappedText(self, context.theme, colour="muted", height=5, anchor="nw")
        self.notes.pack(side="bottom", fill="x", padx=px(PAD), pady=(px(8), 0))
        self.table = Table(self, context.theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, padx=px(PAD))
        self.table.on_events(
            {
                "<Return>": self.load,
                "<Double-Button-1>": self.load,
                "<Delete>": self.delete,
                "<F2>": self.rename,
                "<<TreeviewSelect>>": self._follow_selection,
            }
        )
        self.read()
        self.appear(1100, 600)
        self.table.tree.focus_set()

    # -- actions

    def load(self) -> None:
        """Load the selected preset and close."""
        if (row := self._single_row()) is not None:
            self.close()
            self._context.documents.open_preset(row.preset)

    def save_as(self) -> None:
        """Save the current settings as a preset."""
        self._context.documents.save_as_preset()
        self._path_to_select = self._context.form.source.path
        self.read()

    def describe(self) -> None:
        """Change the description of the selected preset."""
        row = self._selected_user_preset()
        if row is None:
            return
        text = self._context.interaction.ask_text("Describe the preset", row.preset.name, row.notes)
        if text is not None:

            def work() -> None:
                describe_preset(row.preset, text)
                if self._context.form.source.path == row.preset.path:
                    self._context.form.edit("general.notes", text)  # or the next save would bring the old one back

            self._do(work, f"Described {row.preset.name}.", row.preset)

    def rename(self) -> None:
        """Rename the selected preset; a config loaded from it is saved to the new name from now on."""
        row = self._selected_user_preset()
        if row is None:
            return
        name = self._context.interaction.ask_text("Rename the preset", "Preset name", row.preset.name)
        if name is None:
            return

        def work() -> Preset:
            renamed = rename_preset(row.preset, name)
            form = self._context.form
            if form.source.path == row.preset.path:
                form.rename_source(Source(renamed.name, renamed.path, "preset"))
            return renamed

        self._do(work, f"Renamed {row.preset.name}.")

    def duplicate(self) -> None:
        """Copy the selected preset to a new one of the user's."""
        if (row := self._single_row()) is not None:
            self._do(lambda: duplicate_preset(row.preset), f"Copied {row.preset.name}.")

    def delete(self) -> None:
        """Move the selected own presets to the trash folder."""
        presets = [r.preset for r in self._selected_rows() if not r.preset.is_built_in]

        trashed: list[DeletedPreset] = []
        if presets:
            them = "it" if len(presets) == 1 else "them"
            self._do(
                lambda: trashed.extend(map(delete_preset, presets)),
                f"Deleted {_names(presets)}. Undo delete brings {them} back.",
            )
        if trashed:  # also before a failure
            self._trashed.append(trashed)

    def undo_delete(self) -> None:
        """Bring the presets back that were deleted last."""
        if self._trashed:
            trashed = self._trashed.pop()
            work = lambda: [restore_preset(each) for each in trashed][-1]  # noqa: E731
            self._do(work, f"Restored {_names([each.preset for each in trashed])}.")

    def compare(self) -> None:
        """Show the settings in which two presets differ; one alone is compared with the current settings."""
        rows = self._selected_rows()
        if len(rows) == 2:
            PresetComparison(self._context, rows[0], rows[1])
        elif len(rows) == 1:
            form = self._context.form
            name = f"{form.source.name}, as it is now"
            now = PresetRow(Preset(name, "yours", rows[0].preset.path), form.config)
            PresetComparison(self._context, rows[0], now)

    # -- rows

    def read(self) -> None:
        """Read all presets in the background."""
        presets = self._context.documents.presets()
        self.at_close(self._context.pump.background.run(partial(preset_rows, presets), self._show).cancel)

    def _show(self, rows: Sequence[PresetRow]) -> None:
        self._all = list(rows)
        self._show_matches()

    def _show_matches(self) -> None:
        path = self._path_to_select or next((r.preset.path for r in self._selected_rows()), None)
        self.visible = by_model(find_presets(self._all, self.find.get()))
        self.table.set_rows([(f"  {r.preset.name}", r.cells, "error" if r.problem else "") for r in self.visible])
        index = next((i for i, r in enumerate(self.visible) if r.preset.path == path), 0)
        if self.visible:
            self._path_to_select = None
            self.table.select([index])
        self._follow_selection()

    def _do(self, work: Callable[[], object], message: str, keep: Preset | None = None) -> None:
        """Carry out a change, report it, and list the presets again; a failure is shown."""
        try:
            result = work()
        except (DarkroomError, OSError) as error:
            advice = "Check the folder of your presets."
            self._context.show_error("The preset could not be changed", error, advice=advice)
            return
        self._context.notify(message)
        self._path_to_select = result.path if isinstance(result, Preset) else keep.path if keep is not None else None
        self.read()

    def _selected_rows(self) -> list[PresetRow]:
        return [self.visible[i] for i in self.table.selected if i < len(self.visible)]

    def _single_row(self) -> PresetRow | None:
        chosen = self._selected_rows()
        return chosen[0] if len(chosen) == 1 else None

    def _selected_user_preset(self) -> PresetRow | None:
        row = self._single_row()
        return row if row is not None and not row.preset.is_built_in else None

    def _follow_selection(self) -> None:
        rows = self._selected_rows()
        row, user_row = self._single_row(), self._selected_user_preset()
        self.notes.set_text((row.problem or row.notes) if row is not None else "")
        for name, is_possible in (
            ("Load", row is not None and row.config is not None),
            ("Describe…", user_row is not None),
            ("Rename…", user_row is not None),
            ("Duplicate", row is not None),
            ("Delete", any(not r.preset.is_built_in for r in rows)),
            ("Undo delete", bool(self._trashed)),
            ("Compare", len(rows) in (1, 2) and all(r.config is not None for r in rows)),
        ):
            self.buttons[name].set_enabled(is_possible)

    def _add_buttons(self) -> None:
        footer = self.add_footer()
        self.buttons: dict[str, Button] = {}
        for label, command in (
            ("Load", self.load),
            ("Save current as…", self.save_as),
            ("Describe…", self.describe),
            ("Rename…", self.rename),
            ("Duplicate", self.duplicate),
            ("Delete", self.delete),
            ("Undo delete", self.undo_delete),
            ("Compare", self.compare),
        ):
            style = "primary" if label == "Load" else "plain"
            button = Button(footer, self.theme, label, command, style=style, width=60)  # type: ignore[arg-type]
            button.pack(side="left", padx=(0, GAP))
            self.buttons[label] = button


def _names(presets: Sequence[Preset]) -> str:
    return presets[0].name if len(presets) == 1 else count(len(presets), "preset")


class PresetComparison(Window):
    """The settings in which two presets differ."""

    def __init__(self, context: Context, one: PresetRow, other: PresetRow) -> None:
        super().__init__(context.root, context.theme, "Compare presets")
        self.differences = difference_rows(one, other)
        px = context.theme.px
        footer = self.add_footer()
        number = count(len(self.differences), "setting")
        summary = f"{number} {'differs' if len(self.differences) == 1 else 'differ'}"
        Text(footer, context.theme, summary, colour="muted").pack(side="left")
        self.table = Table(self, context.theme, _COMPARISON_COLUMNS)
        self.table.tree.heading("one", text=one.preset.name)
        self.table.tree.heading("other", text=other.preset.name)
        self.table.pack(fill="both", expand=True, padx=px(PAD), pady=(px(PAD), 0))
        self.table.set_rows([(f" {place}", (a, b), "") for place, a, b in self.differences])
        self.appear(820, 480)
        self.table.tree.focus_set()


_LIST_SIZE = (1100, 600)
_LIST_COLUMNS = (
    Column("#0", "Model", 186),
    Column("preset", "Preset", 230),
    Column("trains", "Trains", 88),
    Column("memory", "For a card of", 100),
    Column("about", "About", 400, is_stretched=True, is_fitted=True),
)


class PresetList(SearchWindow):
    """All presets by model, with what they are for; a click or Return chooses one.

    Those of a model for the memory of this computer's card come first, those for a larger card last and in gray.
    """

    is_single = True

    def __init__(self, context: Context, choose: Callable[[Preset], object]) -> None:
        self.card_gb = 0  # unknown at first
        self._context = context
        groups = preset_groups(context.documents.presets())
        self.rows = [PresetRow(preset, None, group.title) for group in groups for preset in group.presets]
        self.matches: list[PresetRow] = []
        super().__init__(
            context.root,
            context.theme,
            "Choose a preset",
            _LIST_COLUMNS,
            hint="Search, for example: lora 8 GB",
            search=self._find,
            take=lambda index: choose(self.matches[index].preset),
        )
        self.table.on_events({"<ButtonRelease-1>": self.go})
        px = context.theme.px
        self.foot = Text(self, context.theme, "", role="small", colour="muted")
        self.foot.pack(side="bottom", anchor="w", padx=px(PAD), pady=(0, px(10)), before=self.table)
        self.notes = WrappedText(self, context.theme, colour="muted", height=5, anchor="nw")
        self.notes.pack(side="bottom", fill="x", padx=px(PAD), pady=(0, px(8)), before=self.table)
        self.table.on_events({"<<TreeviewSelect>>": self._show_notes})
        self.show(*_LIST_SIZE)
        presets = [row.preset for row in self.rows]
        run = context.pump.background.run
        self.at_close(run(lambda: (preset_rows(presets), hardware.gpu_memory("auto")), self._keep_rows).cancel)

    def _keep_rows(self, result: tuple[list[PresetRow], hardware.GpuMemory | None]) -> None:
        """Show what the presets are for, and which suit the card; both take a moment to read."""
        self.rows, card = result
        if card is not None:
            self.card_gb = card.nominal_gb
            about = f"The card of this computer has {self.card_gb} GB."
            self.foot.set_text(f"{about} Of each model, the presets for it come first.")
        else:
            self.at_close(self._context.pump.background.run(_names_without_gpu, self._show_light).cancel)
        selection = self.table.selected
        self.look()
        self.table.select(selection)

    def _show_light(self, names: Sequence[str]) -> None:
        others = f" and {' and '.join(names)}" if names else ""
        self.foot.set_text(f"No GPU was found. This computer can train the demo{others}; the others need a GPU.")

    def _show_notes(self) -> None:
        """Show the whole description of the selected preset."""
        selected = self.table.selected
        row = self.matches[selected[0]] if selected and selected[0] < len(self.matches) else None
        self.notes.set_text(row.problem or row.notes if row is not None else "")

    def _find(self, text: str) -> Rows:
        terms = text.casefold().split()
        matches = find_presets(self.rows, text)
        ranked = sorted(
            for_card(matches, self.card_gb),
            key=lambda r: not all(w in f"{r.preset.name} {r.trains}".casefold() for w in terms),
        )
        self.matches = by_model(ranked)
        groups = ("", *(row.group for row in self.matches))
        return [
            (
                f" {row.group}" if row.group != above else "",
                (row.preset.name, row.trains, row.card, row.problem or first_line(row.notes)),
                "muted" if needs_larger_card(row, self.card_gb) else "",
            )
            for row, above in zip(self.matches, groups, strict=False)
        ]


def _names_without_gpu() -> tuple[str, ...]:
    """Return the names of the presets that this computer can train without a GPU. For a background thread."""
    from trainer.preflight.machine import this_machine
    from trainer.preflight.presets_here import names_on_processor

    return names_on_processor(this_machine())
