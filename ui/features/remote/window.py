"""The window of machines: their records, the check of one, and what is done with a rented one."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.secrets_file import load_secrets
from ui.features.remote.model import Machines, NewKey, check
from ui.features.remote.record_form import RecordForm
from ui.features.remote.renting import Renting, state_of
from ui.forms.context import Context
from ui.loop.background import Job, cancel
from ui.loop.interaction import Answer
from ui.widgets.controls import Button, Choice
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, WrappedText
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

if TYPE_CHECKING:
    from trainer.remote.checking import Finding
    from trainer.remote.record import Remote


class RentedRow(Panel):
    """Shows a rented machine, and starts, stops or deletes it once the user agrees to it. It is in a grid."""

    def __init__(self, master: tk.Misc, context: Context) -> None:
        super().__init__(master, context.theme)
        self.renting = context.models.of(Renting)
        self.buttons: dict[str, Button] = {}
        self._context = context
        self.remote: Remote | None = None
        self._job: Job | None = None
        for name, label, press in (
            ("start", "Start it…", self._start),
            ("stop", "Stop it…", partial(self._end, deletes=False)),
            ("delete", "Delete it…", partial(self._end, deletes=True)),
            ("cancel", "Cancel", self.renting.cancel),
        ):
            self.buttons[name] = Button(self, context.theme, label, press)
        self.state = WrappedText(self, context.theme, colour="muted")
        self.state.pack(side="left", fill="x", expand=True)

    def show(self, remote: Remote | None) -> None:
        """Show a rented machine; None for any other, for which there is a row only while something is done with one."""
        is_new, self.remote = remote != self.remote or not self.renting.is_working, remote
        if remote is None and not self.renting.is_working:
            self.grid_remove()
            return
        self.grid()
        self._show_buttons()
        if remote is None:
            self.state.set_text("")
        elif is_new:
            self._look(remote)

    def destroy(self) -> None:
        """Also drop the state that is asked for; what is being done with a machine continues."""
        cancel(self._job)
        super().destroy()

    def _look(self, remote: Remote) -> None:
        """Read the machine's state at its provider."""
        cancel(self._job)
        self.state.set_text("Rented: asking for its state…")

        def failed(error: Exception) -> None:
            self.state.set_text(f"Rented. {error if isinstance(error, DarkroomError) else plain_reason(error)}")

        work = self._context.pump.background.run
        self._job = work(partial(state_of, remote), lambda text: self.state.set_text(f"Rented: {text}."), failed)

    def _show_buttons(self) -> None:
        is_working = self.renting.is_working
        for name, button in self.buttons.items():
            button.pack_forget()
            if (name == "cancel") == is_working:
                button.pack(side="left", padx=(0, GAP), before=self.state)
        self.buttons["cancel"].set_enabled(self.renting.can_cancel)

    def _start(self) -> None:
        assert self.remote is not None
        price = self.remote.price_per_hour
        message = f"It costs {price:g} an hour from now on, until it is stopped or deleted."
        if self._agrees(f"Start {self.remote.name}?", message, "Start it"):
            self.renting.start(self.remote)

    def _end(self, *, deletes: bool) -> None:
        assert self.remote is not None
        name = self.remote.name
        message = "A run that trains there ends, as if it was killed. "
        message += (
            "All that is on the machine is lost: backups, and results that were not fetched."
            if deletes
            else "Its backups and all else in its folder stay on the volume, which still costs something."
        )
        if self._agrees(f"{'Delete' if deletes else 'Stop'} {name}?", message, "Delete it" if deletes else "Stop it"):
            self.renting.end(self.remote, deletes=deletes)

    def _agrees(self, title: str, message: str, label: str) -> bool:
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("do", label))
        return self._context.interaction.choose(title, message, answers, "warning") == "do"


_IMPORT_TIP = "The cloud settings of a config of OneTrainer, or its secrets.json"
_ONETRAINER = (("OneTrainer", "*.json"),)
_NEW = ""
_NOTE = (
    "Training there needs an SSH server, Python 3.11 or newer and a key that it accepts. The run is sent with all that "
    "it reads, continues when this window is closed, and its folder is here as usual."
)


class MachinesWindow(Window):
    """Edits the list of machines; Save writes a record, Check reaches the machine."""

    is_single = True

    def __init__(self, context: Context) -> None:
        super().__init__(context.root, context.theme, "Machines")
        self.machines = context.models.of(Machines)
        self.machines.read()
        self.buttons: dict[str, Button] = {}
        self._context = context
        self._job: Job | None = None
        pad, px = context.theme.px(PAD), context.theme.px
        WrappedText(self, context.theme, _NOTE, colour="muted").pack(fill="x", padx=pad, pady=(pad, px(10)))
        self._add_footer()
        self.record = RecordForm(self, context)
        self.record.pack(fill="x", padx=pad)
        self.selected = TextVar(master=self)
        top = Panel(self.record, context.theme)
        self.choice = Choice(top, context.theme, self.selected, {}, on="window", command=self.show)
        self.choice.pack(side="left", fill="x", expand=True)
        self.buttons["rent"] = Button(top, context.theme, "Rent a machine…", self._rent)
        self.buttons["rent"].pack(side="left", padx=(GAP, 0))
        self.buttons["import"] = Button(top, context.theme, "Import…", self.import_machine)
        self.buttons["import"].pack(side="left", padx=(GAP, 0))
        context.tips.attach(self.buttons["import"], lambda: _IMPORT_TIP)
        self.record.add_row(0, "Machine", top)
        self.rented = RentedRow(self.record, context)
        last = self.record.grid_size()[1]
        self.rented.grid(row=last, column=0, columnspan=2, sticky="ew", pady=(px(GAP), 0))
        self.warnings = WrappedText(self, context.theme, colour="warning")
        self.warnings.pack(fill="x", padx=pad, pady=(px(12), 0))
        self.findings = WrappedText(self, context.theme, self.machines.problem, colour="label")
        self.findings.pack(fill="x", padx=pad)
        self.at_close(
            lambda: cancel(self._job),
            self.machines.changed.subscribe(self._list),
            self.rented.renting.changed.subscribe(self._follow_renting),
        )
        self._list()
        self.show(self.machines.chosen or next(iter(self.machines.known), _NEW))
        if self.rented.renting.is_working:
            self._follow_renting()
        self.appear(640, 690)

    def show(self, name: str) -> None:
        """Show the record of a machine; an empty one for a new machine."""
        self.selected.set(name)
        remote = self.machines.known.get(name)
        self.record.show(remote)
        self.buttons["remove"].set_enabled(remote is not None)
        self.rented.show(remote if remote is not None and remote.pod else None)
        self._report(self.machines.problem)

    def _follow_renting(self) -> None:
        """Show how far it is with a rented machine; once it has ended, its new record, unless another one is edited."""
        renting, shown = self.rented.renting, self.selected.get()
        is_free = shown == renting.name or shown not in self.machines.known
        if not renting.is_working and is_free and (shown != _NEW or not self.record.name):
            self.show(renting.name if renting.name in self.machines.known else next(iter(self.machines.known), _NEW))
        else:
            self.rented.show(self.rented.remote)
        self._report(renting.status, "error" if renting.is_problem else "label")

    def save(self) -> bool:
        """Keep the record as it is typed; return whether it is valid, which is reported otherwise."""
        former = self.selected.get()
        if not self._confirms_end():
            return False
        if not self._writes(lambda: self.machines.save(self.record.typed(), instead_of=former)):
            return False
        self.show(self.record.name)
        return True

    def _confirms_end(self) -> bool:
        """Ask before a machine ends in a new way after its last run."""
        does = self.record.new_end()
        if not does:
            return True
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("keep", "Do it then"))
        message = (
            f"When a run has finished, its files are here and no other run waits, {does}\n\n"
            "Backups that were not fetched are lost if the machine is deleted."
        )
        return self._context.interaction.choose("End it after the last run?", message, answers) == "keep"

    def remove(self) -> None:
        """Remove the shown machine from the list."""
        answers = (Answer("cancel", "Cancel", is_default=True), Answer("remove", "Remove"))
        name = self.selected.get()
        question = f"{name} is removed from the list. Its files and runs stay on the machine."
        if self.machines.known[name].pod:
            question += " It stays rented and continues to cost: delete it instead if you do not need it."
        if self._context.interaction.choose("Remove this machine?", question, answers) != "remove":
            return
        if self._writes(lambda: self.machines.remove(name)):
            self.show(next(iter(self.machines.known), _NEW))

    def check(self, *, shows_key: bool = False) -> None:
        """Save the record and check the machine in the background."""
        if not self.save():
            return
        remote = self.machines.known[self.selected.get()]
        self._report(f"Reaching {remote.name}…")
        self.buttons["check"].set_enabled(False)

        def done(result: list[Finding] | NewKey) -> None:
            self.buttons["check"].set_enabled(True)
            if isinstance(result, NewKey):
                self._ask_for_key(remote, result)
                return
            good, bad = ([f"{f.name}: {f.text}" for f in result if f.is_good is is_good] for is_good in (True, False))
            self._report("\n".join([*good, "To train on it, choose it next to Start."]), "text")
            self.warnings.set_text("\n".join(bad))

        def failed(error: Exception) -> None:
            self.buttons["check"].set_enabled(True)
            self._report(str(error) if isinstance(error, DarkroomError) else plain_reason(error), "error")
            if isinstance(error, DarkroomError) and "--new-key" in error.advice:
                self.buttons["new_key"].pack(side="left", padx=(GAP, 0))

        work = self._context.pump.background.run
        self._job = work(lambda: check(remote, shows_key=shows_key), done, failed)

    def _ask_for_key(self, remote: Remote, key: NewKey) -> None:
        """Show a host key, keep it if the user accepts it, and check the machine then."""
        from trainer.remote.host_keys import accept

        message = (
            f"{remote.host} answers with this host key. Compare it with the one that its owner gives you:\n\n"
            + "\n".join(key.fingerprints)
        )
        answers = (Answer("refuse", "Cancel", is_default=True), Answer("accept", "Accept the key"))
        if self._context.interaction.choose("Is this the right machine?", message, answers, "warning") != "accept":
            self._report("The key was not accepted, so nothing was sent.")
        elif self._writes(lambda: accept(key.lines)):
            self.buttons["new_key"].pack_forget()
            self.check()

    def _writes(self, write: Callable[[], None]) -> bool:
        """Write a file of machines; return whether that succeeded, and report the reason otherwise."""
        try:
            write()
        except DarkroomError as error:
            self._report(str(error), "error")
            return False
        except OSError as error:
            self._report(f"It could not be written: {plain_reason(error)}.", "error")
            return False
        return True

    def _list(self) -> None:
        self.choice.set_choices({**{name: name for name in self.machines.known}, _NEW: "A new machine"})

    def _report(self, text: str, colour: str = "label") -> None:
        self.warnings.set_text("")
        self.findings.recolour(colour)
        self.findings.set_text(text)

    def import_machine(self) -> None:
        """Add the machine of OneTrainer's cloud settings."""
        from trainer.remote.onetrainer import import_machine, keep
        from trainer.remote.record import RemotesFile

        context = self._context
        file = context.interaction.ask_file("Import a machine", context.preferences.last_folder, _ONETRAINER)
        if file is None:
            return
        names = (f"onetrainer{number if number > 1 else ''}" for number in count(1))
        name = next(name for name in names if name not in self.machines.known)
        notes: list[str] = []

        def write() -> None:
            found = import_machine(name, file, load_secrets().secrets.cloud)
            if keep(found, RemotesFile()):
                notes.append(f"Its API key is stored; {file.name} still contains it.")
            notes.extend(found.notes)

        if self._writes(write):
            self.machines.read()
            self.show(name)
            self._report("\n".join(notes) or f"{file.name} is imported.")

    def _rent(self) -> None:
        from ui.features.remote.rent_window import RentWindow

        RentWindow(self._context)

    def _add_footer(self) -> None:
        footer = self.add_footer()
        for name, label, press, style in (
            ("check", "Save and check", self.check, "primary"),
            ("save", "Save", self.save, "plain"),
            ("remove", "Remove…", self.remove, "plain"),
        ):
            self.buttons[name] = Button(footer, self.theme, label, press, style=style)  # type: ignore[arg-type]
            self.buttons[name].pack(side="left", padx=(0, GAP))
        self.buttons["new_key"] = Button(footer, self.theme, "Show the new key…", lambda: self.check(shows_key=True))
