"""The list of machines as the window sees it, and where the next run trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from modules.system.errors import DarkroomError
from modules.system.paths import remotes_file
from ui.forms.preferences import Preferences
from ui.loop.signal import Signal

if TYPE_CHECKING:  # the window starts without them
    from trainer.remote.checking import Finding
    from trainer.remote.record import Remote

HERE = "This computer"


class Machines:
    """The machines; `problem` is why their list cannot be read."""

    def __init__(self, preferences: Preferences) -> None:
        self.changed: Signal[[]] = Signal()
        self.problem = ""
        self._preferences = preferences
        self._known: Mapping[str, Remote] | None = None

    @property
    def known(self) -> Mapping[str, Remote]:
        """The machines by name; they are read when they are first needed."""
        if self._known is None:
            self._known = self._read() if remotes_file().exists() else {}
        return self._known

    @property
    def places(self) -> Mapping[str, str]:
        """The places where runs can train, for people, by the name of the machine; "" is this computer."""
        return {"": HERE, **{name: name for name in self.known}}

    @property
    def chosen(self) -> str:
        """The name of the machine that the next run trains on; "" for this computer."""
        name = self._preferences.now.train_on
        return name if name in self.known else ""

    @property
    def note(self) -> str:
        """Where the next run trains and what that costs, as a sentence; empty for this computer."""
        remote = self.known.get(self.chosen)
        if remote is None:
            return ""
        price = f", for {remote.price_per_hour:g} an hour" if remote.price_per_hour else ""
        return f"Trains on {remote.name}{price}."

    def choose(self, name: str) -> None:
        """Train the next run on a machine, or with "" on this computer."""
        self._preferences.change(train_on=name)
        self.changed()

    def save(self, remote: Remote, *, instead_of: str = "") -> None:
        """Add a machine, or change the one that had another name. Raises DarkroomError and OSError."""
        from trainer.remote.record import RemotesFile

        RemotesFile().add(remote)
        if instead_of not in ("", remote.name):
            RemotesFile().remove(instead_of)
        self.read()

    def remove(self, name: str) -> None:
        """Remove a machine from the list. Raises DarkroomError and OSError."""
        from trainer.remote.record import RemotesFile

        RemotesFile().remove(name)
        self.read()

    def read(self) -> None:
        """Read the list again: another program may have changed it."""
        self._known = self._read()
        self.changed()

    def _read(self) -> Mapping[str, Remote]:
        from trainer.remote.record import RemotesFile

        try:
            known, self.problem = RemotesFile().read(), ""
        except DarkroomError as error:
            known, self.problem = (), str(error)
        return {remote.name: remote for remote in known}


class NewKey(NamedTuple):
    """A host key that the user has not accepted yet: the lines to keep if it is, and its fingerprints."""

    lines: str
    fingerprints: tuple[str, ...]


def check(remote: Remote, *, shows_key: bool = False) -> list[Finding] | NewKey:
    """Check a machine, for a background thread; return its host key if that is not accepted yet, or `shows_key`.

    Raises DarkroomError if it cannot be reached.
    """
    from trainer.remote.checking import findings_of
    from trainer.remote.connection import Connection, ConnectionLostError, unreachable
    from trainer.remote.host_keys import fingerprints, is_known, offered_keys

    try:
        if shows_key or not is_known(remote):
            lines = offered_keys(remote)
            return NewKey(lines, tuple(fingerprints(lines)))
        with Connection(remote) as connection:
            return findings_of(connection)
    except ConnectionLostError as error:
        raise unreachable(remote, error) from error
