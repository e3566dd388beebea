"""Choices by a person: a folder of requests and answers, and the pairs that are kept of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modules.data.pair_noise import noise_file, noise_seeds
from trainer.commands import StopRequested
from trainer.methods.choosing import wait_for_choices
from trainer.run_folder.choices import (
    SKIP,
    TIE,
    Answer,
    answer,
    answer_of,
    ask,
    choices_dir,
    keep_pair,
    kept_answer,
    open_requests,
    pairs_dir,
    take_back,
    withdraw,
)

PNGS = [b"first", b"second", b"third"]


def test_a_choice_is_asked_answered_and_kept_as_a_pair(tmp_path: Path) -> None:
    request = ask(tmp_path, "step00000004-000", "a red disc", PNGS)
    assert [p.read_bytes() for p in request.images] == PNGS
    assert open_requests(tmp_path) == [request]
    assert answer_of(request) is None
    answer(request, Answer("chosen", best=2, worst=0))
    assert open_requests(tmp_path) == []
    given = answer_of(request)
    assert given == Answer("chosen", 2, 0)
    keep_pair(tmp_path, request, given)
    withdraw(request)
    pairs = {str(p.relative_to(pairs_dir(tmp_path))): p.read_bytes() for p in pairs_dir(tmp_path).rglob("*.*")}
    name = "step00000004-000"
    caption = {f"chosen/{name}.txt": b"a red disc\n"}
    assert pairs == caption | {f"chosen/{name}.png": b"third", f"rejected/{name}.png": b"first"}
    assert not request.folder.exists()


def test_a_pair_keeps_the_seeds_of_its_noises(tmp_path: Path) -> None:
    request = ask(tmp_path, "one", "", PNGS, [7, 2**63 - 1, 5])
    assert open_requests(tmp_path) == [request]
    keep_pair(tmp_path, request, Answer("chosen", 1, 2))
    chosen = pairs_dir(tmp_path) / "chosen" / "one.png"
    assert noise_seeds(chosen) == (2**63 - 1, 5)
    for nonsense in (
        "",
        "{",
        "[]",
        '{"chosen": 1}',
        '{"chosen": 1, "rejected": -1}',
        '{"chosen": 1, "rejected": true}',
    ):
        noise_file(chosen).write_text(nonsense)
        assert noise_seeds(chosen) is None
    keep_pair(tmp_path, ask(tmp_path, "two", "", PNGS), Answer("chosen", 0, 1))
    assert noise_seeds(chosen.with_name("two.png")) is None


@pytest.mark.parametrize("given", [TIE, SKIP])
def test_ties_and_skipped_requests_are_answers_but_no_pairs(tmp_path: Path, given: Answer) -> None:
    request = ask(tmp_path, "one", "", PNGS)
    answer(request, given)
    assert answer_of(request) == given
    keep_pair(tmp_path, request, given)
    assert not pairs_dir(tmp_path).exists()


def test_choices_that_a_stop_kept_can_be_changed_when_the_run_waits_again(tmp_path: Path) -> None:
    """They could not be taken back, and stayed a pair next to another answer."""
    requests = [ask(tmp_path, name, "", PNGS, [7, 8, 9]) for name in ("one", "two")]
    answer(requests[0], Answer("chosen", 0, 1))

    def stop() -> None:
        raise StopRequested

    def change_and_go_on() -> None:
        assert take_back(requests[0])
        answer(requests[0], TIE)
        answer(requests[1], Answer("chosen", 2, 0))

    stopped: Any = SimpleNamespace(run_dir=tmp_path, emit=lambda _event: None, check=stop)
    with pytest.raises(StopRequested):
        wait_for_choices(requests, 1, stopped, wait=lambda: None)
    assert kept_answer(tmp_path, "one", PNGS) == Answer("chosen", 0, 1)
    resumed: Any = SimpleNamespace(run_dir=tmp_path, emit=lambda _event: None, check=lambda: None)
    assert wait_for_choices(requests, 1, resumed, wait=change_and_go_on) == [None, (2, 0)]
    assert {path.stem for path in pairs_dir(tmp_path).rglob("*.*")} == {"two"}


def test_asking_the_same_again_keeps_the_answer(tmp_path: Path) -> None:
    answer(ask(tmp_path, "one", "a disc", PNGS), Answer("chosen", 0, 1))
    assert answer_of(ask(tmp_path, "one", "a disc", PNGS)) == Answer("chosen", 0, 1)
    assert answer_of(ask(tmp_path, "one", "a disc", [b"other", *PNGS[1:]])) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"best": 0}',
        '{"best": 0, "worst": 0}',
        '{"best": 0, "worst": 3}',
        '{"best": -1, "worst": 0}',
        '{"best": true, "worst": 0}',
        '{"best": "0", "worst": 1}',
        '{"verdict": "maybe"}',
    ],
)
def test_an_answer_that_makes_no_sense_is_none(tmp_path: Path, content: str) -> None:
    request = ask(tmp_path, "one", "a disc", PNGS)
    (request.folder / "answer.json").write_text(content)
    assert answer_of(request) is None
    assert open_requests(tmp_path) == [request]


def test_an_answer_without_end_is_none(tmp_path: Path) -> None:
    """Any program may write it: a valid one, followed by more than an answer can have."""
    request = ask(tmp_path, "one", "a disc", PNGS)
    (request.folder / "answer.json").write_text('{"best": 0, "worst": 1}' + " " * (1 << 20), encoding="utf-8")
    assert answer_of(request) is None


def test_answers_are_checked_before_they_are_written(tmp_path: Path) -> None:
    request = ask(tmp_path, "one", "a disc", PNGS)
    with pytest.raises(ValueError, match="0 and 3 are not two of the 3 images"):
        answer(request, Answer("chosen", 0, 3))
    assert answer_of(request) is None


def test_a_request_cannot_point_out_of_its_folder(tmp_path: Path) -> None:
    request = ask(tmp_path, "one", "a disc", PNGS)
    content = {"prompt": "x", "images": ["../../../secret.png", "/etc/x"]}
    (request.folder / "request.json").write_text(json.dumps(content))
    [found] = open_requests(tmp_path)
    assert {p.parent for p in found.images} == {request.folder}
    (choices_dir(tmp_path) / "open" / "half").mkdir()
    (choices_dir(tmp_path) / "open" / "half" / "request.json").write_text('{"prompt": 3}')
    assert open_requests(tmp_path) == [found]


def test_an_answer_is_taken_back_until_the_run_has_used_it(tmp_path: Path) -> None:
    request = ask(tmp_path, "a", "a red disc", PNGS)
    answer(request, TIE)
    assert take_back(request)
    assert take_back(request)  # without an answer, too
    assert open_requests(tmp_path) == [request]
    given = Answer("chosen", best=2, worst=0)
    answer(request, given)
    keep_pair(tmp_path, request, given)
    assert not take_back(request)
    assert answer_of(request) == given
    withdraw(request)
    assert not take_back(request)


def test_a_withdrawn_request_takes_no_answer(tmp_path: Path) -> None:
    request = ask(tmp_path, "a", "a red disc", PNGS)
    withdraw(request)
    with pytest.raises(FileNotFoundError, match="not open any more"):
        answer(request, TIE)
    assert not request.folder.exists()
