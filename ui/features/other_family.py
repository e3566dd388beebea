"""The window "Train this dataset on another family": the family, its preset, what is left out, and all changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from modules.config.codec import LoadedConfig
from modules.config.other_family import CarriedOver, start_of, train_on
from modules.config.presets import Preset, families_for_card, list_presets, preset_for, readable_configs
from modules.config.schema import Config
from modules.families.registry import FAMILIES, newest_families
from modules.settings.edit import set_path
from modules.system.hardware import gpu_memory
from modules.system.problem import count
from ui.forms.changes import Change, changes
from ui.forms.context import Context
from ui.forms.documents import Documents
from ui.forms.model import FormModel
from ui.loop.background import Background
from ui.loop.signal import Signal
from ui.widgets.controls import Choice
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_DEFAULTS = ""  # in place of a preset's name, for a family without presets


@dataclass(frozen=True, slots=True)
class Starts:
    """The configs that a move may begin with, of all presets that can be read; the memory of the card, 0 if unknown."""

    configs: Mapping[Preset, Config]
    card_gb: int

    def of(self, family: str) -> dict[str, Preset]:
        """Return the presets of a family by name, without the demo's."""
        return {p.name: p for p, c in self.configs.items() if c.family.name == family and not p.is_demo}


def read_starts() -> Starts:
    """Read the presets, and ask the driver for the card; for a background thread."""
    card = gpu_memory("auto")
    return Starts(readable_configs(list_presets()), card.nominal_gb if card is not None else 0)


class Moving:
    """A move to be confirmed; `changed` is emitted when the choices or the result changes.

    It begins with a `family`, if one is given, whose base model is named by `settings`.
    """

    def __init__(
        self,
        form: FormModel,
        background: Background,
        family: str = "",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.family, self.preset = "", _DEFAULTS
        self._first_choice, self._settings = family, settings or {}
        self.presets: Mapping[str, str] = {}
        self.result: CarriedOver | None = None
        self.changes: tuple[Change, ...] = ()
        self.changed: Signal[[]] = Signal()
        self._form = form
        self._starts: Starts | None = None
        self._job = background.run(read_starts, self._keep)

    @property
    def families(self) -> Mapping[str, str]:
        """The labels of the other families by name, the newest first."""
        return {n: FAMILIES[n].label for n in newest_families() if n != self._form.config.family.name}

    @property
    def summary(self) -> str:
        """The parts of the config that stay, as a sentence; first, that the presets are being read."""
        if self.result is None:
            return "Reading the presets…"
        config = self.result.config
        parts = (
            count(len(config.concepts), "concept"),
            count(len(config.sampling.prompts), "sample prompt"),
            count(config.training.epochs, "epoch"),
        )
        return (
            f"{', '.join(parts)}, resolution, captions, folders and the name of the result stay. The rest is the "
            "preset's. Ctrl+Z brings the present config back."
        )

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about settings that are left out or need attention."""
        return [f"{n.message} {n.advice}".strip() for n in self.result.notes] if self.result is not None else ()

    def set_family(self, family: str) -> None:
        """Choose a family, with its best preset for this config and card."""
        if self._starts is None or family == self.family or family not in FAMILIES:
            return
        presets = self._starts.of(family)
        best = preset_for(family, self._form.config, self._starts.card_gb, self._starts.configs)
        self.family, self.presets = family, {n: n for n in presets} or {_DEFAULTS: "The defaults"}
        self.preset = best.name if best is not None else next(iter(self.presets))
        self.compute()

    def set_preset(self, name: str) -> None:
        """Choose a preset of the family."""
        if name in self.presets and name != self.preset:
            self.preset = name
            self.compute()

    def compute(self) -> None:
        """Compute the move for the config as it is now."""
        if self._starts is None:
            return
        if self.family not in self.families:  # another config of the chosen family was loaded
            self.family = ""
            is_known = self._first_choice in self.families
            self.set_family(self._first_choice if is_known else self._first_family(self._starts))
            return
        preset = self._starts.of(self.family).get(self.preset)
        start = self._starts.configs[preset] if preset is not None else start_of(self.family)
        config = self._form.config
        result = train_on(config, start)
        if self.family == self._first_choice:
            result = replace(result, config=_with_settings(result.config, self._settings))
        self.result = result
        self.changes = changes(self.result.config, config)
        self.changed()

    def apply(self, documents: Documents) -> bool:
        """Load the moved config in place of the present one, which an undo brings back; return whether there is one."""
        if self.result is None:
            return False
        name = f"{self._form.source.name.lstrip('#')} on {FAMILIES[self.family].label}"
        documents.open_config(LoadedConfig(self.result.config, list(self.result.notes)), name)
        return True

    def close(self) -> None:
        """Drop what is still being read."""
        self._job.cancel()

    def _first_family(self, starts: Starts) -> str:
        """Return the newest family with a preset for the card, or the newest of all."""
        fitting = families_for_card(starts.configs, starts.card_gb)
        return next((name for name in self.families if name in fitting), next(iter(self.families)))

    def _keep(self, starts: Starts) -> None:
        self._starts = starts
        self.compute()


def _with_settings(config: Config, settings: Mapping[str, object]) -> Config:
    for path, value in settings.items():
        config, _problems = set_path(config, path, value)
    return config


_COLUMNS = (
    Column("#0", "Setting", 340, is_stretched=True),
    Column("before", "Now", 210, is_fitted=True),
    Column("now", "Then", 250, is_fitted=True),
)


class OtherFamily(Window):
    """Shows what would change before it does; closing changes nothing."""

    is_single = True

    def __init__(self, context: Context, moving: Moving | None = None) -> None:
        super().__init__(context.root, context.theme, "Train this dataset on another family")
        self.moving = moving or Moving(context.form, context.pump.background)
        self.family, self.preset = TextVar(master=self), TextVar(master=self)
        self._context = context
        px = context.theme.px
        self._add_header(px(PAD))
        self.add_footer("Cancel", above_px=0)
        self.apply_button = self.add_main_button("Change to it", self.apply, width=110)
        self.notes = WrappedText(self, context.theme, anchor="nw", justify="left")
        self.notes.pack(fill="x", padx=px(PAD), pady=(0, px(12)))
        self.table = Table(self, context.theme, _COLUMNS)
        self.table.pack(fill="both", expand=True, padx=px(PAD), pady=(0, px(12)))
        self._unfollow_form = context.form.changed.subscribe(
            lambda: context.pump.redraw_soon((self, "move"), self.moving.compute)
        )
        self.at_close(self.moving.close, self._unfollow_form, partial(context.pump.forget, (self, "move")))
        self.redraw_after(context.pump, self._follow, self.moving.changed)
        self.moving.compute()
        self._follow()
        self.appear(920, 640)

    def apply(self) -> None:
        """Load the config for the other family and close."""
        self._unfollow_form()  # the present config will be of the chosen family
        if self.moving.apply(self._context.documents):
            self.close()

    def _add_header(self, pad: int) -> None:
        header = Panel(self, self.theme)
        header.pack(fill="x", padx=pad, pady=(pad, self.theme.px(10)))
        Text(header, self.theme, "Train on", colour="label").pack(side="left", padx=(0, GAP))
        families = self.moving.families
        self.family_choice = Choice(
            header, self.theme, self.family, families, on="window", width=230, command=self.moving.set_family
        )
        self.family_choice.pack(side="left")
        Text(header, self.theme, "with", colour="label").pack(side="left", padx=GAP)
        self.preset_choice = Choice(
            header, self.theme, self.preset, {}, on="window", width=300, command=self.moving.set_preset
        )
        self.preset_choice.pack(side="left")
        self.summary = WrappedText(self, self.theme, colour="muted")
        self.summary.pack(fill="x", padx=pad, pady=(0, self.theme.px(12)))

    def _follow(self) -> None:
        moving = self.moving
        self.family_choice.set_choices(moving.families)
        self.preset_choice.set_choices(moving.presets)
        for variable, value in ((self.family, moving.family), (self.preset, moving.preset)):
            if variable.get() != value:
                variable.set(value)
        self.summary.set_text(moving.summary)
        self.notes.set_text("\n".join(f"•  {note}" for note in moving.notes))
        self.table.set_rows([(f" {c.place}", (c.before, c.now), "") for c in moving.changes])
        self.apply_button.set_enabled(moving.result is not None)


def open_other_family(context: Context, family: str = "", settings: Mapping[str, object] | None = None) -> OtherFamily:
    """Open the window, with a family and the settings that name its base model if they are given.

    One that is already open is closed.
    """
    return OtherFamily(context, Moving(context.form, context.pump.background, family, settings))
