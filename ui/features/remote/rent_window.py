"""The window that rents a machine: the cards with their prices, the settings, and a question before it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from ui.features.remote.model import Machines
from ui.features.remote.renting import Renting, first_settings, look_for_offers, make_key
from ui.forms.context import Context
from ui.forms.section_form import SectionForm
from ui.loop.background import Job, cancel
from ui.loop.interaction import Answer
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.table import Column, Table
from ui.widgets.theme import GAP, PAD

if TYPE_CHECKING:
    from trainer.remote.providers import Offer
    from trainer.remote.renting import RentSettings

_NOTE = (
    "RunPod rents out machines by the hour. It needs an account with credit there, an API key of it, and a pair of SSH "
    "keys. Nothing costs before you agree to it."
)
_NO_KEY = "Store the API key of your RunPod account to see what can be rented (runpod.io: Settings, API Keys)."
_COLUMNS = (
    Column("#0", "Card", 280, is_stretched=True),
    Column("memory", "Memory", 90, anchor="e"),
    Column("price", "$ an hour", 90, anchor="e"),
    Column("stock", "Free now", 110, anchor="e"),
)


class RentWindow(Window):
    """Rents a machine through the model of rented machines, which outlives this window."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Rent a machine")
        self.renting, self._machines = context.models.of(Renting), context.models.of(Machines)
        self.offers: Sequence[Offer] = ()
        self._context = context
        self._job: Job | None = None
        pad, px = context.theme.px(PAD), context.theme.px
        WrappedText(self, context.theme, _NOTE, colour="muted").pack(fill="x", padx=pad, pady=(pad, px(GAP)))
        self._add_footer()
        self.status = WrappedText(self, context.theme, colour="label")
        self.status.pack(side="bottom", fill="x", padx=pad, pady=(px(GAP), 0))
        card = Panel(self, context.theme, "card")
        card.pack(side="bottom", fill="x", padx=pad, pady=(px(GAP), 0))
        self.form = SectionForm(card, context, first_settings(self._machines), without=("card",))
        self.form.pack(fill="x", padx=px(4), pady=px(6))
        self.table = Table(self, context.theme, _COLUMNS, num_rows=4)
        self.table.tree.configure(selectmode="browse")
        self.table.pack(fill="both", expand=True, padx=pad)
        self.table.on_events({"<<TreeviewSelect>>": self._selected})
        # A machine that is being rented stays.
        self.at_close(self.renting.changed.subscribe(self._follow), lambda: cancel(self._job))
        self._follow_selection()
        self.look()
        self.appear(720, 690)

    def look(self) -> None:
        """Read what can be rented, in the background."""
        self._set_status("Reading what can be rented…")
        self._job = self._context.pump.background.run(look_for_offers, self._show, self._fail)

    def rent(self) -> None:
        """Ask, then rent the selected card."""
        from trainer.remote.renting import records_of

        try:
            if not self.settings.key and not self._has_made_key():
                return
            settings = self.settings
            records_of(settings)
        except (DarkroomError, OSError) as error:
            self._fail(error)
            return
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("rent", "Rent it"))
        question = f"Rent {settings.cards} x {self.offer.label}?" if self.offer is not None else ""
        if self._context.interaction.choose(question, self._costs(settings), answers, "warning") == "rent":
            self.renting.rent(settings)

    @property
    def offer(self) -> Offer | None:
        """The selected card."""
        return self.offers[self.table.selected[0]] if self.table.selected else None

    @property
    def settings(self) -> RentSettings:
        """The settings with the selected card. Raises DarkroomError if an entry is not valid."""
        settings = cast("RentSettings", self.form.settings)
        return settings.model_copy(update={"card": self.offer.card if self.offer is not None else ""})

    def _has_made_key(self) -> bool:
        """Make a pair of keys for a user who has none, if that is wanted."""
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("make", "Make a pair of keys"))
        message = (
            "Only the owner of a private SSH key can log in to a rented machine. You have not chosen one: Darkroom can "
            "make a pair for its own machines. The private key stays on this computer, readable only by you."
        )
        if self._context.interaction.choose("Make a pair of keys?", message, answers) != "make":
            return False
        self.form.set("key", make_key())
        return True

    def _costs(self, settings: RentSettings) -> str:
        assert self.offer is not None
        after = {
            "": "Nothing is done with it after its last run: stop or delete it yourself.",
            "stop": "It is stopped when its last run has finished; its volume continues to cost.",
            "delete": "It is deleted when its last run has finished and its files are here.",
        }[settings.after]
        return (
            f"{settings.name} costs {self.offer.price_per_hour * settings.cards:.2f} dollars an hour from now on, plus "
            f"a little for its disks of {settings.disk + settings.volume} GB, until it is stopped or deleted. "
            f"Closing this program does not end it.\n\n{after}"
        )

    def _show(self, offers: Sequence[Offer] | None) -> None:
        from trainer.remote.providers import STOCKS

        self.offers = offers or ()
        self.key_button.restyle("plain" if offers is not None else "primary")
        rows = [
            (o.label, (f"{o.memory_gb} GB", f"{o.price_per_hour:.2f}", STOCKS[o.stock]), "faint" * (o.stock == "none"))
            for o in self.offers
        ]
        self.table.set_rows(rows)
        self._follow_selection()
        if self.renting.is_working:
            self._follow()
        else:
            self._set_status(
                _NO_KEY if offers is None else "Choose a card." if offers else "Nothing can be rented now."
            )

    def _fail(self, error: Exception) -> None:
        self._set_status(str(error) if isinstance(error, DarkroomError) else f"{plain_reason(error)}.", "error")

    def _selected(self) -> None:
        self._follow_selection()
        if self.offer is not None and not self.renting.is_working:
            self._set_status(f"{self.offer.card}: {self.offer.price_per_hour:.2f} dollars an hour for each card.")

    def _follow_selection(self) -> None:
        self.rent_button.set_enabled(self.offer is not None and not self.renting.is_working)

    def _follow(self) -> None:
        self._set_status(self.renting.status, "error" if self.renting.is_problem else "label")
        self.cancel_button.set_enabled(self.renting.can_cancel)
        self._follow_selection()

    def _store_key(self) -> None:
        self._context.links.enter_secret("cloud.api_key")
        if self.winfo_exists():
            self.look()

    def _set_status(self, text: str, colour: str = "label") -> None:
        self.status.recolour(colour)
        self.status.set_text(text)

    def _add_footer(self) -> None:
        footer = self.add_footer()
        self.rent_button = Button(footer, self.theme, "Rent it…", self.rent, style="primary")
        self.cancel_button = Button(footer, self.theme, "Cancel", self.renting.cancel)
        self.key_button = Button(footer, self.theme, "API key…", self._store_key)
        for button in (self.rent_button, self.cancel_button, self.key_button):
            button.pack(side="left", padx=(0, GAP))
        self.cancel_button.set_enabled(self.renting.can_cancel)
