"""The results of runs, to be sampled: the newest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from modules.config.schema import Config
from trainer.run_folder.records import config_of, read_record, run_dirs

Kind = Literal["adapter", "full", "embedding"]
_KINDS: dict[str, Kind] = {"adapter": "adapter", "full": "full", "embedding": "embedding"}
_MOST_READ = 30  # runs; of a long list the newest


@dataclass(frozen=True, slots=True)
class Result:
    """The newest model that a run has saved, and the settings of the run."""

    path: Path
    run_dir: Path
    kind: Kind
    words: str
    config: Config


def newest_results(workspaces: Iterable[Path], most: int = 6) -> tuple[Result, ...]:
    """Return the results of the newest runs that have one which still exists; for a background thread.

    Of several runs with the same result file only the newest counts: it has written the file last.
    """
    folders = sorted(chain.from_iterable(map(run_dirs, dict.fromkeys(workspaces))), key=lambda f: f.name, reverse=True)
    found: dict[Path, Result] = {}
    for run_dir in folders[:_MOST_READ]:
        result = _result_of(run_dir)
        if result is not None:
            found.setdefault(result.path, result)
        if len(found) == most:
            break
    return tuple(found.values())


def _result_of(run_dir: Path) -> Result | None:
    record = read_record(run_dir)
    path = next((path for path in reversed(record.outputs) if path.exists()), None)
    config = config_of(run_dir) if path is not None else None
    kind = _KINDS.get(config.training.trains) if config is not None else None
    if path is None or config is None or kind is None:
        return None
    started = f"{record.started:%Y-%m-%d %H:%M}" if record.started else record.name
    return Result(path, run_dir, kind, f"{path.name} ({started}, step {record.step:,})", config)
