"""A person's choices for a run on another machine: its requests come with its files, the answers go back.

The answers here count. They are not fetched, so that one that was taken back does not return.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePosixPath

from trainer.remote.connection import Connection
from trainer.run_folder.choices import ANSWER_FILE, REQUEST_FILE, Answer, all_requests, answer_of, choices_dir, withdraw

_REQUESTS = PurePosixPath("choices/open")
_SECONDS = 30.0


class Answers:
    """The answers of a run that its machine knows."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._known: dict[str, Answer | None] = {}

    def pass_on(self, connection: Connection, run_there: str) -> None:
        """Send the new answers, and take back those that were taken back here. Raises ConnectionLostError.

        The answer to a request that is new to this follower may have been taken back while the run had none.
        """
        taken_back = []
        for request in all_requests(self._run_dir):
            given = answer_of(request)
            if request.name in self._known and given == self._known[request.name]:
                continue
            there = f"{run_there}/{_REQUESTS / request.name / ANSWER_FILE}"
            if given is None:
                taken_back.append(there)
            else:
                connection.call("write", (request.folder / ANSWER_FILE).read_bytes(), name=there)
            self._known[request.name] = given
        if taken_back:
            connection.call("command", arguments=["rm", "-f", "--", *taken_back], cwd=run_there, seconds=_SECONDS)


def is_answer(name: str) -> bool:
    """Return whether a file of a run's folder, by its name there, is the answer to a request."""
    path = PurePosixPath(name)
    return path.name == ANSWER_FILE and path.parent.parent == _REQUESTS


def remove_withdrawn(run_dir: Path, names_there: Collection[str]) -> None:
    """Remove the requests that the run has withdrawn: `names_there` are the files of its folder there."""
    if not choices_dir(run_dir).is_dir():
        return
    there = map(PurePosixPath, names_there)
    open_there = {p.parent.name for p in there if p.name == REQUEST_FILE and p.parent.parent == _REQUESTS}
    for request in all_requests(run_dir):
        if request.name not in open_there:
            withdraw(request)
