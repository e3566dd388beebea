"""queue: several configs one after another, each in a process of its own; the same queue as in the window."""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Literal

from annotated_types import Ge

from modules.settings.field import Section, Setting
from modules.system.file_errors import plain_reason
from modules.system.paths import queue_file
from modules.system.problem import errors_in
from trainer.child.run import ChildRun, launch_child
from trainer.cli.console import Console, JsonLines, Listener
from trainer.cli.options import settings_verb
from trainer.cli.program import FAILED, OK, STOPPED, WRONG, exit_code_of_run, verb_group
from trainer.cli.signals import at_signal
from trainer.commands import Stop
from trainer.events import Event, RunFailed, RunFinished
from trainer.jobs.config import (
    Changes,
    CodeSettings,
    FamilyName,
    PresetName,
    allowed_code,
    describe,
    read_config,
)
from trainer.jobs.spec import Argument, positional
from trainer.remote.record import RemotesFile
from trainer.run_queue.file import QueueFile
from trainer.run_queue.items import Item, RunQueue
from trainer.run_queue.running import QueueRun, continues_after, request_of, start_other_machines

_WAIT_SECONDS = 0.2
_MACHINE = Argument(metavar="NAME")


class AddSettings(Section):
    """The configs to add."""

    configs: Annotated[
        tuple[str, ...], Setting("Configs", "A config file, or the name of a preset."), positional("CONFIG")
    ] = ()
    name: Annotated[str, Setting("Name", "The name in the queue; by default the name of the file.")] = ""
    on: Annotated[str, Setting("On", "The machine that trains it; by default this computer."), _MACHINE] = ""
    preset: PresetName = ""
    family: FamilyName = ""
    changes: Changes = ()


class ListSettings(Section):
    """How the queue is listed."""

    json_text: Annotated[bool, Setting("JSON", "Print the queue as JSON."), Argument("--json")] = False


class RemoveSettings(Section):
    """The items to remove."""

    numbers: Annotated[
        tuple[int, ...], Setting("Numbers", "The numbers of the items in the list."), positional("NUMBER")
    ] = ()


class MoveSettings(Section):
    """The item to move, and its new place."""

    number: Annotated[int, Setting("Number", "The number of the item in the list."), positional("NUMBER")] = 0
    place: Annotated[int, Ge(1), Setting("Place", "Its new place, counted from 1."), positional("PLACE")] = 1


class QueueRunSettings(CodeSettings):
    """The settings of running the queue."""

    after_failure: Annotated[
        Literal["", "continue", "stop"], Setting("After a failure", "What to do after a failed run.")
    ] = ""
    on: Annotated[
        str, Setting("On", "Only the items of this machine; by default each machine trains its own."), _MACHINE
    ] = ""
    only_next: Annotated[bool, Setting("Only the next", "Stop after the next item.")] = False
    json_lines: Annotated[bool, Setting("JSON lines", "Print events as JSON lines to standard output.")] = False


def _add(settings: AddSettings) -> int:
    if settings.on:
        RemotesFile().find(settings.on)
    for name in settings.configs:
        loaded = read_config(name, settings.changes, preset=settings.preset, family=settings.family)
        for problem in errors_in(loaded.problems):
            sys.stderr.write(f"{describe(problem)}\n")
        title = settings.name or name.lstrip("#")
        changed = _file().change(partial(RunQueue.add, name=title, config=loaded.config, machine=settings.on))
        sys.stdout.write(f"{changed.items[-1].number}: {title}\n")
    return 0


def _list(settings: ListSettings) -> int:
    now, runner = _file().read(), _file().runner
    if settings.json_text:
        data = {**now.to_json(), "runner": runner.pid if runner else None}
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        return 0
    if not now.items:
        sys.stdout.write("The queue is empty. Add configs with: queue add CONFIG\n")
    for item in now.items:
        words = f"  {item.message}" if item.message else ""
        place = f" on {item.machine}" if item.machine else ""
        sys.stdout.write(f"{item.number:>4}  {item.state.label:<13} {item.name}{place}{words}\n")
    if runner is not None:
        sys.stdout.write("The queue is running.\n")
    return 0


def _remove(settings: RemoveSettings) -> int:
    _file().change(lambda now: now.remove(settings.numbers))
    return 0


def _move(settings: MoveSettings) -> int:
    _file().change(lambda now: now.move(settings.number, settings.place - 1))
    return 0


def _run(settings: QueueRunSettings) -> int:
    file = _file()
    if settings.on:
        RemotesFile().find(settings.on)
    if wanted := settings.after_failure:
        file.change(lambda now: now.with_after_failure(wanted))
    if not settings.on and not settings.only_next:
        configs = [item.config for item in file.read().items if item.machine and item.is_open]
        allowed = frozenset[str]().union(*(allowed_code(config, settings) for config in configs))
        for machine in start_other_machines(file, allowed_code=allowed):
            sys.stderr.write(f"{machine} trains its items in the background. See: queue list\n")
    listener = JsonLines() if settings.json_lines else Console()
    return run_queue(file, listener, launch=_launcher(settings), machine=settings.on, only_next=settings.only_next)


def run_queue(
    file: QueueFile,
    listener: Listener,
    *,
    launch: Callable[[Item], ChildRun],
    machine: str = "",
    only_next: bool = False,
) -> int:
    """Train the items of a machine until there are no more, a run fails or the user stops; return the exit code.

    With `only_next` a single item is trained. The exit code is FAILED if a run failed, WRONG if runs were only refused,
    so that their configs have to be changed. Raises DarkroomError if another program runs the queue of the machine.
    """
    running, ends = QueueRun(file, machine), list[RunFinished | RunFailed | None]()
    try:
        while (item := running.take_next()) is not None:
            sys.stderr.write(f"Queue item {item.number}: {item.name}\n")
            ends.append(end := _follow(running, item, listener, launch))
            if only_next or end is None or not continues_after(file.read(), item.number, end.status):
                break
        is_complete = item is None
    finally:
        running.close()
        listener.close()
    if not ends:
        sys.stderr.write(f"Nothing in the queue waits for {machine or 'this computer'}.\n")
    codes = [exit_code_of_run(end) for end in ends if end is not None]
    if codes[-1:] == [STOPPED] and not is_complete:
        return STOPPED
    return FAILED if FAILED in codes else WRONG if WRONG in codes else OK


def _follow(
    running: QueueRun, item: Item, listener: Listener, launch: Callable[[Item], ChildRun]
) -> RunFinished | RunFailed | None:
    """Train an item to its end and return its last event. A child that cannot be started is a failure.

    A signal to end stops a run of this computer. One of another machine continues there: then there is no last event.
    """
    try:
        child = launch(item)
    except OSError as error:
        failed = RunFailed(f"The training process could not be started: {plain_reason(error)}.")
        running.note(item, failed)
        listener.show(failed)
        return failed
    is_left = threading.Event()

    def leave() -> None:
        is_left.set()
        child.close()

    with at_signal(leave if item.machine else partial(child.send, Stop())):
        for event in _events(child):
            if is_left.is_set() and isinstance(event, RunFailed):  # of the process that has followed it
                sys.stderr.write(f"The run continues on {item.machine}. Follow it again with: queue run\n")
                return None
            listener.show(event)
            running.note(item, event)
            if isinstance(event, RunFinished | RunFailed):
                ending = event
    return ending


def _events(child: ChildRun) -> Iterator[Event]:
    while True:
        was_alive = child.is_alive
        try:
            yield child.events.get(timeout=_WAIT_SECONDS)
        except queue.Empty:
            if not was_alive:
                return


def _launcher(settings: QueueRunSettings) -> Callable[[Item], ChildRun]:
    return lambda item: launch_child(request_of(item, allowed_code=allowed_code(item.config, settings)))


def _file() -> QueueFile:
    return QueueFile(queue_file())


QUEUE = verb_group(
    "train several configs one after another: queue add, list, run, remove, move",
    {
        "add": settings_verb(
            "add copies of configs; later changes of a file do not change the queue", AddSettings, _add
        ),
        "list": settings_verb("list the queue", ListSettings, _list),
        "run": settings_verb(
            "train the configs of the queue one after another; the exit code is 1 if a run failed, 2 if none did but a "
            "config was refused",
            QueueRunSettings,
            _run,
        ),
        "remove": settings_verb("remove items", RemoveSettings, _remove),
        "move": settings_verb("move an item to another place", MoveSettings, _move),
    },
)
