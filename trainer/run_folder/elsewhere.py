"""The note in the folder of a run on another machine: the machine, the job, and the paths there and here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from modules.system.atomic import write_text

LINK_FILE = "remote.json"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A run on another machine: the name of the machine, its job there and the job's folder.

    `destination` is where the result is to be here. `paths` maps the paths there that texts of the run may contain to
    the paths here. `price_per_hour` is the price when the run was begun; 0 if unknown.
    """

    remote: str
    job: str
    folder: str
    destination: str
    paths: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float = 0.0

    @property
    def result(self) -> str:
        """The folder of the result there."""
        return f"{self.folder}/result"

    def with_local_paths(self, text: str, run_dir_there: str, run_dir: Path) -> str:
        """Return a text of that machine, such as a line of JSON, with the paths of this one."""
        paths = {
            **self.paths,
            self.result: str(Path(self.destination).parent),
            **({run_dir_there: str(run_dir)} if run_dir_there else {}),
        }
        for there in sorted(paths, key=len, reverse=True):
            for before, after in {there: paths[there], _inside_json(there): _inside_json(paths[there])}.items():
                text = text.replace(before, after)
        return text


def note_elsewhere(run_dir: Path, elsewhere: Elsewhere) -> None:
    """Record in a run's folder where it is trained. Raises OSError."""
    write_text(run_dir / LINK_FILE, json.dumps(asdict(elsewhere), indent=1))


def elsewhere_of(run_dir: Path) -> Elsewhere | None:
    """Return where a run is trained; None for a run of this machine."""
    try:
        return _reader().validate_json((run_dir / LINK_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _inside_json(text: str) -> str:
    return json.dumps(text)[1:-1]


@cache
def _reader() -> TypeAdapter[Elsewhere]:
    """Return the validator of the note; building it takes longer than the rest of this import."""
    return TypeAdapter(Elsewhere)
