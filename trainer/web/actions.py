"""The actions of the page: commands to runs, choices, the order of the queue, starting a saved config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.config.codec import load_file
from modules.system.errors import DarkroomError
from modules.system.problem import errors_in
from trainer.commands import BackupNow, Command, Pause, Resume, SampleNow, SaveNow, Stop, ValidateNow
from trainer.launch import RunRequest
from trainer.run_folder.attached import start_detached, start_following
from trainer.run_folder.backup import find_backup
from trainer.run_folder.choices import SKIP, TIE, Answer, Request, answer, take_back
from trainer.run_folder.elsewhere import elsewhere_of
from trainer.run_folder.run_lock import holder_of
from trainer.run_queue.file import QueueFile
from trainer.run_queue.running import skip, start_detached_queue, start_other_machines
from trainer.run_status import RunStatus
from trainer.web.overview import newest_phase, startable
from trainer.web.runs import Runs, id_of
from trainer.web.starts import Starts
from trainer.web.stream import send

COMMANDS: Mapping[str, tuple[Command, str]] = {
    "stop": (Stop(), "Stopping: the run writes a backup first."),
    "pause": (Pause(), "Pausing."),
    "resume": (Resume(), "The run continues."),
    "sample": (SampleNow(), "Samples follow {when}."),
    "validate": (ValidateNow(), "A validation follows {when}."),
    "backup": (BackupNow(), "A backup follows {when}."),
    "save": (SaveNow(), "The model is saved {when}."),
}
"""The commands that the page sends, and what it shows then."""


def command(run_dir: Path, name: str) -> str:
    """Send a command to a run, and return what happens now. Raises DarkroomError."""
    if name not in COMMANDS:
        raise DarkroomError(f"{name!r} is not a command.", advice=f"There are: {', '.join(COMMANDS)}.")
    chosen, message = COMMANDS[name]
    if problem := send(run_dir, chosen):
        raise DarkroomError(problem)
    return message.format(when="once the run continues" if newest_phase(run_dir) == "paused" else "after this step")


def follow(run_dir: Path, starts: Starts) -> str:
    """Follow a run on another machine, which no process here does. Raises DarkroomError, OSError."""
    elsewhere = elsewhere_of(run_dir)
    if elsewhere is None or holder_of(run_dir) is not None or starts.of(run_dir).is_under_way:
        raise DarkroomError("The run is followed already, or it is a run of this computer.")
    starts.add(run_dir, start_following(run_dir))
    return f"Connecting with {elsewhere.remote}."


def resume(run_dir: Path, runs: Runs, starts: Starts) -> str:
    """Resume a run where it was trained, from its newest backup, in a process of its own.

    Raises DarkroomError, OSError.
    """
    if starts.of(run_dir).is_under_way:
        raise DarkroomError("The run starts already.")
    if (elsewhere := elsewhere_of(run_dir)) is not None:
        if holder_of(run_dir) is not None:
            raise DarkroomError("The run trains already.")
        starts.add(run_dir, start_following(run_dir, resumes=True))
        return f"The run resumes on {elsewhere.remote}."
    if _trains_here(runs, starts):
        raise DarkroomError("Another run trains on this computer.", advice="Resume this one when it has ended.")
    backup = find_backup(run_dir)
    config = load_file(backup.path / "config.json").config
    starts.add(run_dir, start_detached(RunRequest(config, "resume", backup.path, in_window=False)))
    return f"The run resumes at step {backup.step:,}."


def choose(request: Request | None, given: Mapping[str, Any]) -> str:
    """Answer a request for a choice, or take the answer back. Raises DarkroomError, OSError."""
    gone = DarkroomError("This request is not open any more.")
    if request is None:
        raise gone
    match given:
        case {"undo": True}:
            if not take_back(request):
                raise DarkroomError("The run has already used this choice.")
            return "Choose again."
        case {"verdict": "tie"}:
            chosen, message = TIE, "A tie."
        case {"verdict": "skip"}:
            chosen, message = SKIP, "Skipped."
        case {"best": int(best), "worst": int(worst)}:
            chosen, message = Answer("chosen", best, worst), f"Chose image {best + 1}."
        case _:
            raise DarkroomError("The answer is not valid.")
    try:
        answer(request, chosen)
    except FileNotFoundError:
        raise gone from None
    except ValueError as error:
        raise DarkroomError(str(error)) from None
    return message


def change_queue(file: QueueFile, action: str, number: int) -> str:
    """Move, remove, repeat or skip an item of the queue. Raises DarkroomError, OSError."""
    match action:
        case "up" | "down":
            file.change(lambda queue: queue.move_by(number, -1 if action == "up" else 1))
            return ""
        case "remove":
            file.change(lambda queue: queue.remove([number]))
            return "Removed from the queue."
        case "repeat":
            file.change(lambda queue: queue.repeat([number]))
            return "It waits again."
        case "skip":
            item = file.read().item(number)
            if not item.is_running or not item.run_dir:
                raise DarkroomError("Only a run that trains can be skipped.")
            skip(file, item)
            return "Stopping this run; the queue continues with the next one."
        case _:
            raise DarkroomError(f"{action!r} cannot be done with an item of the queue.")


def run_queue(file: QueueFile, starts: Starts) -> str:
    """Train the items of the queue in processes of their own: one for each machine. Raises DarkroomError, OSError."""
    queue = file.read()
    if queue.next is None:
        raise DarkroomError("Nothing waits in the queue.", advice="Start a saved config to add it.")
    if queue.on("").next is not None and file.runner is None and not starts.is_queue_under_way:
        starts.add_queue(start_detached_queue()[0])  # it starts the queues of other machines, too
        return "The queue starts."
    return "The queue starts." if start_other_machines(file) else "The queue is running already."


def start(file: QueueFile, runs: Runs, starts: Starts, preset_id: str) -> str:
    """Add a saved config to the queue, and run the queue unless something trains on this computer.

    Raises DarkroomError for an unknown or unreadable config, OSError.
    """
    preset = next((p for p in startable() if id_of(p.path) == preset_id), None)
    if preset is None:
        raise DarkroomError("This config is not there any more.", advice="Load the page again.")
    name, loaded = preset.name.lstrip("#"), preset.load()
    if errors := errors_in(loaded.problems):
        raise DarkroomError(f"{name} cannot be started: {errors[0]}", advice="Open it in the window.")
    file.change(lambda queue: queue.add(name, loaded.config))
    if file.runner is not None or starts.is_queue_under_way:
        return f"{name} is in the queue, which is running."
    if _trains_here(runs, starts):
        return f"{name} is in the queue. Run the queue when the current run has ended."
    starts.add_queue(start_detached_queue()[0])
    return f"{name} starts."


def _trains_here(runs: Runs, starts: Starts) -> bool:
    """Return whether a run trains on this computer, or is about to."""
    is_training = any(record.status is RunStatus.RUNNING and not record.remote for record in runs.newest())
    return is_training or starts.is_any_under_way_here
