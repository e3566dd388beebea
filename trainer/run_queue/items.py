"""The queue of runs as a value: configs to be trained one after another.

A config is copied when it is added: later edits of a file or the window do not change it. Secrets are not part of
configs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from modules.config.codec import decode, encode, pack_lists
from modules.config.schema import Config
from modules.system.errors import DarkroomError
from trainer.run_status import RunStatus

AfterFailure = Literal["continue", "stop"]
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Item:
    """A config in the queue. `number` identifies it for good; `run_dir` is the folder of its run once it has one.

    A run that is stopped ends the queue, unless its item `is_skipped`. `machine` is the name of the one that trains it,
    "" for this computer: each machine trains its items one after another, next to the others.
    """

    number: int
    name: str
    settings: Mapping[str, Any]
    state: RunStatus = RunStatus.WAITING
    message: str = ""
    run_dir: str = ""
    is_skipped: bool = False
    machine: str = ""

    @property
    def config(self) -> Config:
        """Its config; settings that cannot be read have their defaults, as in a file."""
        return decode(dict(self.settings)).config

    @property
    def is_open(self) -> bool:
        """Whether it is still to be trained."""
        return self.state in (RunStatus.WAITING, RunStatus.INTERRUPTED)

    @property
    def is_waiting(self) -> bool:
        """Whether its training has not begun."""
        return self.state is RunStatus.WAITING

    @property
    def is_running(self) -> bool:
        """Whether it is trained at the moment."""
        return self.state is RunStatus.RUNNING

    @property
    def has_ended(self) -> bool:
        """Whether it has been trained, or its run has failed."""
        return not (self.is_open or self.is_running)


@dataclass(frozen=True, slots=True)
class RunQueue:
    """The items in order. Every method returns another queue."""

    items: tuple[Item, ...] = ()
    next_number: int = 1
    after_failure: AfterFailure = "continue"

    def on(self, machine: str) -> RunQueue:
        """Return the part of the queue that a machine trains."""
        return replace(self, items=tuple(item for item in self.items if item.machine == machine))

    @property
    def other_machines(self) -> tuple[str, ...]:
        """The names of the other machines that have items still to be trained."""
        return tuple(dict.fromkeys(item.machine for item in self.items if item.machine and item.is_open))

    @property
    def running(self) -> Item | None:
        """The first item that is trained at the moment."""
        return next((item for item in self.items if item.is_running), None)

    @property
    def next(self) -> Item | None:
        """The item to train next: an interrupted one first, then the first that waits."""
        is_open = [item for item in self.items if item.is_open]
        return min(is_open, key=lambda item: item.state is not RunStatus.INTERRUPTED, default=None)

    def item(self, number: int) -> Item:
        """Return an item. Raises DarkroomError for a number that is not in the queue."""
        item = next((item for item in self.items if item.number == number), None)
        if item is None:
            raise DarkroomError(f"The queue has no item {number}.", advice="List the queue to see the numbers.")
        return item

    def add(self, name: str, config: Config, *, machine: str = "") -> RunQueue:
        """Add a copy of a config at the end."""
        item = Item(self.next_number, name, encode(pack_lists(config)), machine=machine)
        return replace(self, items=(*self.items, item), next_number=self.next_number + 1)

    def remove(self, numbers: Collection[int]) -> RunQueue:
        """Remove items. Raises DarkroomError for the running one."""
        for number in numbers:
            if self.item(number).is_running:
                raise DarkroomError(f"Item {number} is running.", advice="Stop it first, then remove it.")
        return replace(self, items=tuple(item for item in self.items if item.number not in numbers))

    def put_back(self, item: Item, place: int) -> RunQueue:
        """Undo a removal: insert an item at a place. One that is there, as it is now, only gets another place."""
        others = [other for other in self.items if other.number != item.number]
        item = next((other for other in self.items if other.number == item.number), item)
        others.insert(max(0, min(place, len(others))), item)
        return replace(self, items=tuple(others), next_number=max(self.next_number, item.number + 1))

    def move(self, number: int, place: int) -> RunQueue:
        """Move an item to a place, counted from 0; a place beyond the ends is the first or the last."""
        return self.put_back(self.item(number), place)

    def move_by(self, number: int, by: int) -> RunQueue:
        """Move an item up (negative) or down by some places."""
        return self.move(number, self.items.index(self.item(number)) + by)

    def edit(self, number: int, config: Config) -> RunQueue:
        """Replace the config of an item that is still to be trained. Raises DarkroomError for another."""
        item = self.item(number)
        if not item.is_waiting:
            raise DarkroomError(
                f"Item {number} cannot be edited: it has begun.", advice="Add the config as a new item."
            )
        return self._with(replace(item, settings=encode(pack_lists(config))))

    def assign(self, numbers: Collection[int], machine: str) -> RunQueue:
        """Let another machine, or with "" this computer, train items that wait; others keep theirs."""
        queue = self
        for number in numbers:
            if (item := self.item(number)).is_waiting:
                queue = queue._with(replace(item, machine=machine))
        return queue

    def repeat(self, numbers: Collection[int]) -> RunQueue:
        """Let items that have ended wait again, to be trained anew."""
        queue = self
        for number in numbers:
            item = self.item(number)
            if not item.is_running:
                queue = queue._with(replace(item, state=RunStatus.WAITING, message="", run_dir="", is_skipped=False))
        return queue

    def begin(self, number: int) -> RunQueue:
        """Mark an item as running."""
        return self._with(replace(self.item(number), state=RunStatus.RUNNING, message="", is_skipped=False))

    def with_run_dir(self, number: int, run_dir: str) -> RunQueue:
        """Record the folder of the item's run."""
        return self._with(replace(self.item(number), run_dir=run_dir))

    def skip(self, number: int) -> RunQueue:
        """Let the queue continue when the item's run is stopped."""
        return self._with(replace(self.item(number), is_skipped=True))

    def end(self, number: int, state: RunStatus, message: str) -> RunQueue:
        """Record how the item's run ended."""
        return self._with(replace(self.item(number), state=state, message=message))

    def recover(self, is_run: Callable[[str], bool] = lambda machine: False) -> RunQueue:
        """Mark items as interrupted that were running when their program ended; they resume from their backups.

        Items for machines whose queue `is_run` by a program are left out.
        """
        message = "The program that ran the queue ended."
        state = RunStatus.INTERRUPTED

        def after_recovery(item: Item) -> Item:
            has_ended = item.is_running and not is_run(item.machine)
            return replace(item, state=state, message=message) if has_ended else item

        return replace(self, items=tuple(map(after_recovery, self.items)))

    def with_after_failure(self, choice: AfterFailure) -> RunQueue:
        """Choose what happens after a run that failed."""
        return replace(self, after_failure=choice)

    def to_json(self) -> dict[str, Any]:
        """Return the queue as JSON-safe data."""
        return {"darkroom_queue": _FORMAT, **asdict(self), "items": [asdict(item) for item in self.items]}

    def _with(self, changed: Item) -> RunQueue:
        return replace(self, items=tuple(changed if item.number == changed.number else item for item in self.items))


Change = Callable[[RunQueue], RunQueue]


def from_json(data: object) -> RunQueue:
    """Return the queue of JSON data. Raises ValueError for data that are not a queue of this version."""
    match data:
        case {
            "darkroom_queue": int(number),
            "items": list(items),
            "next_number": int(next_number),
            "after_failure": "continue" | "stop" as after_failure,
        } if number == _FORMAT:
            read = tuple(map(_item, items))
            return RunQueue(read, max([next_number, *(i.number + 1 for i in read)]), after_failure)
        case _:
            raise ValueError("it does not contain a queue of this version")


def _item(data: object) -> Item:
    match data:
        case {
            "number": int(number),
            "name": str(name),
            "settings": dict(settings),
            "state": str(state),
            "message": str(message),
            "run_dir": str(run_dir),
            **others,
        } if state in list(RunStatus):
            is_skipped, machine = others.get("is_skipped") is True, str(others.get("machine", ""))
            return Item(number, name, settings, RunStatus(state), message, run_dir, is_skipped, machine)
        case _:
            raise ValueError("it contains an item that cannot be read")
