"""A person's choices without a window: what is asked, written and taken back, in which order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.run_folder.choices import SKIP, TIE, Answer, Request, answer, answer_of, ask, open_requests, withdraw
from ui.features.choose.model import IN_USE, WITHDRAWN, Choosing
from ui.loop.background import Background, Job


class Slow(Background):
    """Runs its jobs when the test wants them to run."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []

    def run(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> Job:
        self.jobs.append(Job(work, done, failed or pytest.fail))
        return self.jobs[-1]

    def work_through(self) -> None:
        while self.jobs:
            job = self.jobs.pop(0)
            try:
                result = job.work()
            except Exception as error:  # noqa: BLE001 - as a background thread does
                job.failed(error)
            else:
                job.done(result)


def asked(run_dir: Path, number: int, num_images: int = 2, *, step: int = 0) -> list[Request]:
    return [
        ask(run_dir, f"step{step:08d}-{n:03d}", f"prompt {n}", [bytes([step, n, k]) for k in range(num_images)])
        for n in range(number)
    ]


def opened(run_dir: Path) -> tuple[Choosing, Slow]:
    slow = Slow()
    choosing = Choosing(slow)
    choosing.open(run_dir)
    slow.work_through()
    return choosing, slow


def test_requests_are_answered_one_after_the_other(tmp_path: Path) -> None:
    requests = asked(tmp_path, 3)
    choosing, slow = opened(tmp_path)
    seen = []
    for act in (lambda: choosing.pick(1), choosing.tie, choosing.skip):
        seen.append((choosing.request, choosing.position))
        act()
    slow.work_through()
    assert seen == [(request, (n + 1, 3)) for n, request in enumerate(requests)]
    assert [answer_of(request) for request in requests] == [Answer("chosen", 1, 0), TIE, SKIP]
    assert choosing.request is None


def test_of_several_images_the_best_and_then_the_worst_are_chosen(tmp_path: Path) -> None:
    [request] = asked(tmp_path, 1, num_images=4)
    choosing, slow = opened(tmp_path)
    choosing.pick(9)
    choosing.pick(2)
    assert (choosing.best, choosing.needs_worst) == (2, True)
    choosing.pick(2)  # the same again takes the mark back
    assert choosing.best is None
    choosing.pick(3)
    choosing.undo()
    choosing.pick(1)
    choosing.pick(0)
    slow.work_through()
    assert answer_of(request) == Answer("chosen", 1, 0)


def test_undo_takes_back_a_choice_that_the_run_has_not_used(tmp_path: Path) -> None:
    requests = asked(tmp_path, 2)
    choosing, slow = opened(tmp_path)
    choosing.pick(0)
    choosing.undo()  # before the answer is even written
    slow.work_through()
    assert answer_of(requests[0]) is None
    assert (choosing.request, choosing.position) == (requests[0], (1, 2))
    choosing.pick(1)
    choosing.pick(1)
    slow.work_through()
    choosing.undo()
    choosing.undo()
    slow.work_through()
    assert open_requests(tmp_path) == requests
    assert choosing.request == requests[0]
    assert not choosing.can_undo


def test_a_choice_that_the_run_has_used_stays(tmp_path: Path) -> None:
    requests = asked(tmp_path, 2)
    choosing, slow = opened(tmp_path)
    choosing.pick(0)
    slow.work_through()
    withdraw(requests[0])
    choosing.undo()
    slow.work_through()
    assert choosing.message == IN_USE
    assert choosing.request == requests[1]
    assert not requests[0].folder.exists()


def test_a_read_never_brings_back_what_was_answered_meanwhile(tmp_path: Path) -> None:
    requests = asked(tmp_path, 3)
    choosing, slow = opened(tmp_path)
    choosing.refresh()
    choosing.pick(0)  # while the read is under way
    slow.work_through()
    assert choosing.request == requests[1]
    answer(requests[1], TIE)  # by another program
    choosing.refresh()
    slow.work_through()
    assert choosing.request == requests[2]


def test_a_new_round_counts_from_one(tmp_path: Path) -> None:
    asked(tmp_path, 2)
    choosing, slow = opened(tmp_path)
    choosing.tie()
    choosing.tie()
    slow.work_through()
    shutil.rmtree(tmp_path / "choices")
    later = asked(tmp_path, 3, step=1)
    choosing.refresh()
    slow.work_through()
    assert (choosing.request, choosing.position, choosing.can_undo) == (later[0], (1, 3), False)


def test_an_answer_to_a_withdrawn_request_is_reported(tmp_path: Path) -> None:
    requests = asked(tmp_path, 2)
    choosing, slow = opened(tmp_path)
    withdraw(requests[0])
    choosing.pick(0)
    slow.work_through()
    assert choosing.message == WITHDRAWN
    assert choosing.request == requests[1]
    assert not requests[0].folder.exists()  # no answer without its request is left behind


def test_a_folder_that_cannot_be_read_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged_errors: list[str]
) -> None:
    requests = asked(tmp_path, 1)
    choosing, slow = opened(tmp_path)

    def broken(run_dir: Path) -> list[Request]:
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr("ui.features.choose.model.open_requests", broken)
        choosing.refresh()
        slow.work_through()
    assert "The choices could not be read" in logged_errors[0]
    logged_errors.clear()
    choosing.pick(0)
    slow.work_through()
    assert answer_of(requests[0]) == Answer("chosen", 0, 1)
