"""Which launch of torchrun a run's folder belongs to, so that a restart after a failure continues the run. Torch-free.

torchrun starts all processes again with the same command line (`--max-restarts`). Their parent stays the same.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from modules.system.atomic import write_text
from modules.system.file_lock import Holder
from trainer.run_folder.backup import list_backups
from trainer.run_folder.order import age_of

_FILE = "launch.json"
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"


def mark_launch(run_dir: Path) -> None:
    """Record in a run's folder which launch of torchrun writes to it; without torchrun nothing."""
    if _RESTARTS in os.environ:
        write_text(run_dir / _FILE, json.dumps(_parent()))


def interrupted_run(workspace: Path) -> Path | None:
    """Return the newest backup of the run that this launch of torchrun began before it restarted its processes.

    None for the first start, and for a run that has no backup: it starts again.
    """
    if int(os.environ.get(_RESTARTS) or 0) == 0:
        return None
    own = _parent()
    runs = [file.parent for file in (workspace / "runs").glob(f"*/{_FILE}") if _read(file) == own]
    newest_first = sorted(runs, key=age_of, reverse=True)
    return next((backups[-1].path for run_dir in newest_first if (backups := list_backups(run_dir))), None)


def _parent() -> dict[str, object]:
    parent = Holder.of(os.getppid())
    return {"pid": parent.pid, "started": parent.started, "host": parent.host}


def _read(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
