"""Ending a machine when its last run has finished: by a command there, or its provider stops or deletes it."""

from __future__ import annotations

from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.paths import queue_file
from trainer.events import Event, RunFinished, WarningRaised
from trainer.remote.connection import Connection, ConnectionLostError
from trainer.remote.record import RemotesFile
from trainer.remote.renting import end
from trainer.run_queue.file import QueueFile

_SECONDS = 120
_MAX_CHARS = 300


def end_machine(connection: Connection, job: str, ending: Event) -> WarningRaised | None:
    """End a machine after a run whose files are all here; return a warning if it keeps running, or its command failed.

    A command may end the connection. The machine is not ended after a run that failed or was stopped, because its
    backups are there, nor, without a warning, while other runs train there or wait for it in the queue.
    """
    remote = RemotesFile().current(connection.remote)
    if not remote.is_ended_after_runs:
        return None
    if not (isinstance(ending, RunFinished) and ending.status.is_complete):
        return WarningRaised(f"{remote.name} keeps running, because the backups of this run are on it.")
    try:
        others = [name for name in connection.call("running")[0] if name != job]
        if others or any(item.is_open for item in QueueFile(queue_file()).read().on(remote.name).items):
            return None
        if remote.pod_after:
            end(remote, RemotesFile(), deletes=remote.pod_after == "delete")
            return None
        code, printed = connection.call(
            "command", arguments=["sh", "-c", remote.command_after], cwd=connection.facts["folder"], seconds=_SECONDS
        )
    except ConnectionLostError:
        return None  # the command has ended the machine
    except (DarkroomError, OSError) as error:
        reason = str(error) if isinstance(error, DarkroomError) else f"{plain_reason(error)}."
        return WarningRaised(f"{remote.name} could not be ended, and may cost. {reason}")
    if code:
        text = " ".join(printed.decode(errors="replace").split())[-_MAX_CHARS:]
        return WarningRaised(f"The command after a run failed on {remote.name}: {text or f'exit code {code}'}.")
    return None
