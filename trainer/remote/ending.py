"""The command that a machine runs when its last run has finished, such as one that switches a rented machine off."""

from __future__ import annotations

from modules.system.paths import queue_file
from trainer.events import Event, RunFinished, WarningRaised
from trainer.remote.connection import Connection, ConnectionLostError
from trainer.run_queue.file import QueueFile

_SECONDS = 120
_MAX_CHARS = 300


def run_command_after(connection: Connection, job: str, ending: Event) -> WarningRaised | None:
    """Run the machine's command after a run whose files are all here, and return what speaks against it, if anything.

    It may end the machine, and the connection with it. It is not run after a run that failed or was stopped, whose
    backups are there, nor while other runs train there or wait for it in the queue.
    """
    remote = connection.remote
    if not remote.command_after:
        return None
    if not (isinstance(ending, RunFinished) and ending.status.is_complete):
        return WarningRaised(f"{remote.name} has not run its command after a run: the backups of this one are there.")
    try:
        others = [name for name in connection.call("running")[0] if name != job]
        if others or any(item.is_open for item in QueueFile(queue_file()).read().on(remote.name).items):
            return None
        code, printed = connection.call(
            "command", arguments=["sh", "-c", remote.command_after], cwd=connection.facts["folder"], seconds=_SECONDS
        )
    except ConnectionLostError:
        return None  # it has ended the machine
    if code:
        text = " ".join(printed.decode(errors="replace").split())[-_MAX_CHARS:]
        return WarningRaised(f"The command after a run failed on {remote.name}: {text or f'exit code {code}'}.")
    return None
