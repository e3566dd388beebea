"""The queue: as a value under any changes, on disk under several programs, and on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, queue_file
from tests.unit.strategies import garbage
from trainer.__main__ import main
from trainer.child.run import arguments_of
from trainer.cli.console import Console
from trainer.cli.queue import run_queue
from trainer.events import RunFailed, RunFinished, RunStarted
from trainer.remote.record import Remote, RemotesFile
from trainer.run_folder.backup import write_backup
from trainer.run_queue import running
from trainer.run_queue.file import QueueFile
from trainer.run_queue.items import Item, RunQueue, from_json
from trainer.run_queue.running import QueueRun, continues_after, request_of
from trainer.run_status import RunStatus

CONFIG = Config()
HOLD = "import sys; from pathlib import Path; from trainer.run_queue.file import QueueFile; "
HOLD += "lock = QueueFile(Path(sys.argv[1])).hold(); print('held', flush=True); sys.stdin.read()"


def epochs(number: int) -> Config:
    config, problems = set_path(CONFIG, "training.epochs", number)
    assert not problems
    return config


def filled(number: int) -> RunQueue:
    queue = RunQueue()
    for n in range(number):
        queue = queue.add(f"run {n + 1}", CONFIG)
    return queue


def numbers(queue: RunQueue) -> list[int]:
    return [item.number for item in queue.items]


changes = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "move", "begin", "end", "fail", "recover", "repeat", "edit"]),
        st.integers(1, 6),
        st.integers(-2, 8),
    ),
    max_size=12,
)


def applied(queue: RunQueue, what: str, number: int, place: int) -> RunQueue:
    match what:
        case "add":
            return queue.add(f"name {number}", CONFIG)
        case "remove":
            return queue.remove([number])
        case "move":
            return queue.move(number, place)
        case "begin":
            return queue.begin(number)
        case "end":
            return queue.end(number, RunStatus.FINISHED, "Finished.")
        case "fail":
            return queue.end(number, RunStatus.FAILED, "It failed.")
        case "recover":
            return queue.recover()
        case "repeat":
            return queue.repeat([number])
        case _:
            return queue.edit(number, CONFIG)


@given(changes)
def test_any_changes_leave_a_queue_that_survives_the_file(steps: list[tuple[str, int, int]]) -> None:
    queue = filled(2)
    for what, number, place in steps:
        before = queue
        try:
            queue = applied(queue, what, number, place)
        except DarkroomError:
            assert queue is before
        assert len(set(numbers(queue))) == len(queue.items)
        assert all(number < queue.next_number for number in numbers(queue))
        assert queue.next_number >= before.next_number, "a number is never used twice"
        if what == "move":
            assert sorted(numbers(queue)) == sorted(numbers(before))
        if what == "recover":
            assert queue.running is None
        assert queue.next is None or queue.next.is_open
    assert from_json(json.loads(json.dumps(queue.to_json()))) == queue


@given(garbage)
def test_a_file_with_anything_in_it_is_a_queue_or_an_error(data: Any) -> None:
    for content in (data, {**filled(1).to_json(), "items": data}, {**filled(1).to_json(), "items": [data]}):
        try:
            assert isinstance(from_json(content), RunQueue)
        except ValueError as error:
            assert str(error)  # noqa: PT017 - both are right


def test_an_interrupted_item_comes_first_then_the_order_of_the_queue() -> None:
    queue = filled(3).move(3, 0).begin(2)
    assert numbers(queue) == [3, 1, 2]
    assert queue.next == queue.item(3)
    assert queue.recover().next == queue.recover().item(2)


def test_only_waiting_items_are_edited_and_running_ones_stay() -> None:
    queue = filled(2).begin(1)
    assert queue.edit(2, epochs(7)).item(2).config.training.epochs == 7
    with pytest.raises(DarkroomError, match="has begun"):
        queue.edit(1, CONFIG)
    with pytest.raises(DarkroomError, match="running"):
        queue.remove([1])
    with pytest.raises(DarkroomError, match="no item 9"):
        queue.move(9, 0)


def test_a_removal_is_undone_in_its_place() -> None:
    queue = filled(3)
    item = queue.item(2)
    assert queue.remove([2]).put_back(item, 1) == queue
    assert queue.begin(2).put_back(item, 1) == queue.begin(2), "it trained twice: the removal had been refused"


def test_a_config_is_copied_without_secrets_when_it_is_added(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    save_file(epochs(3), file)
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "secrets": {"huggingface_token": "hf_abcdefghijklmnopqrstuvwxyz012345"}}))
    assert main(["queue", "add", str(file), "--set", "training.batch_size=3"]) == 0
    save_file(epochs(9), file)
    [item] = QueueFile(queue_file()).read().items
    assert (item.config.training.epochs, item.config.training.batch_size) == (3, 3)
    assert "hf_abcdef" not in queue_file().read_text()


def test_two_programs_do_not_undo_each_others_changes(tmp_path: Path) -> None:
    files = [QueueFile(tmp_path / "queue.json") for _ in range(2)]

    def add(file: QueueFile) -> None:
        for _ in range(8):
            file.change(lambda queue: queue.add("one", CONFIG))

    threads = [threading.Thread(target=add, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(files[0].read()) == list(range(1, 17))
    assert [p.name for p in tmp_path.iterdir()] == ["queue.json"], "no lock is left behind"


def test_a_file_that_cannot_be_read_is_never_overwritten(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "queue.json")
    file.path.write_text('{"darkroom_queue": 99}')
    for use in (file.read, lambda: file.change(RunQueue.recover), file.hold):
        with pytest.raises(DarkroomError, match="cannot be read"):
            use()
    assert file.path.read_text() == '{"darkroom_queue": 99}'
    assert file.runner is None


def test_one_program_runs_the_queue_and_a_killed_one_leaves_interrupted_items(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "queue.json")
    file.change(lambda queue: filled(2).begin(1))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file.path)],
        cwd=PROGRAM_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(DarkroomError, match="Another program is running the queue"):
            QueueRun(file)
        assert file.runner is not None
        file.change(lambda queue: queue.begin(1))
        process.kill()
    assert [item.state for item in file.read().items] == ["interrupted", "waiting"]
    run = QueueRun(file)
    assert [item.state for item in file.read().items] == ["interrupted", "waiting"]
    run.close()
    assert numbers(file.change(lambda queue: queue.remove([1]))) == [2], "it is not running any more"
    assert file.runner is None


def test_what_happens_to_a_run_is_recorded(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "queue.json")
    file.change(lambda queue: filled(2))
    run = QueueRun(file)
    first = run.take_next()
    assert first is not None
    started = RunStarted(str(tmp_path / "runs" / "one"), "sd", "denoise", "adapter", 1, 1, 0, 1, 0, 1, (), "cpu", 1)
    run.note(first, started)
    assert file.read().item(1).run_dir == started.run_dir
    run.note(first, RunFailed("No memory.", "Use less."))
    now = file.read()
    assert (now.item(1).state, now.item(1).message) == ("failed", "No memory. Use less.")
    second = run.take_next()
    assert second is not None
    run.note(second, RunFinished("stopped_early", 5, "Stopped early."))
    assert file.read().item(2).state == "stopped_early"
    assert run.take_next() is None
    run.close()


def test_a_failure_stops_the_queue_only_where_that_is_chosen_and_a_stop_always_does() -> None:
    queue = filled(1)
    for state in (RunStatus.FAILED, RunStatus.CRASHED):
        assert continues_after(queue, 1, state)
        assert not continues_after(queue.with_after_failure("stop"), 1, state)
    assert continues_after(queue.with_after_failure("stop"), 1, RunStatus.STOPPED_EARLY)
    assert not continues_after(queue, 1, RunStatus.STOPPED)
    skipped = queue.skip(1)
    assert continues_after(skipped, 1, RunStatus.STOPPED)
    assert not continues_after(skipped.begin(1), 1, RunStatus.STOPPED), "it was repeated"
    assert from_json(skipped.to_json()) == skipped
    assert from_json({**skipped.to_json(), "items": [_without_skip(skipped)]}) == queue, "of older versions"


_REFUSED, _BROKEN = RunFailed("No images.", is_refused=True), RunFailed("The loss is not finite.")
_FINISHED, _STOPPED = RunFinished("finished", 3, "Finished."), RunFinished("stopped", 3, "Stopped.")


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([_FINISHED, _FINISHED], 0),
        ([_REFUSED, _FINISHED], 2),
        ([_REFUSED, _BROKEN, _FINISHED], 1),
        ([_BROKEN, _REFUSED], 1),
        ([RunFailed("The disk is full.", is_refused=True, remedy="space")], 1),
        ([_STOPPED, _FINISHED], 130),
    ],
)
def test_the_exit_code_tells_a_failed_run_from_a_config_to_change(
    ends: list[RunFailed | RunFinished], code: int, tmp_path: Path
) -> None:
    """It was 1 for both, unlike that of the verb train."""
    file, left = QueueFile(tmp_path / "queue.json"), iter(ends)
    file.change(lambda queue: filled(len(ends)))

    def launch(item: Item) -> Any:
        events = SimpleQueue[Any]()
        events.put(next(left))
        return SimpleNamespace(events=events, is_alive=False, send=lambda command: None)

    assert run_queue(file, Console(), launch=launch) == code


def test_only_the_next_item_can_be_trained(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "queue.json")
    file.change(lambda queue: filled(2))

    def launch(item: Item) -> Any:
        events = SimpleQueue[Any]()
        events.put(_FINISHED)
        return SimpleNamespace(events=events, is_alive=False, send=lambda command: None)

    assert run_queue(file, Console(), launch=launch, only_next=True) == 0
    assert [item.state for item in file.read().items] == ["finished", "waiting"]


def test_an_interrupted_run_resumes_and_without_a_backup_starts_again(tmp_path: Path) -> None:
    item = replace(filled(1).items[0], state=RunStatus.INTERRUPTED, run_dir=str(tmp_path))
    assert request_of(item).kind == "train"
    backup = write_backup(tmp_path, step=3, epoch=1, now=datetime(2026, 3, 4), write=lambda folder: None)
    assert (request_of(item).kind, request_of(item).resume_from) == ("resume", backup.path)
    assert request_of(replace(item, state=RunStatus.WAITING)).kind == "train"


def test_the_verb_adds_lists_moves_and_removes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "add", "#demo"]) == 0
    assert main(["queue", "add", "#demo", "--name", "second"]) == 0
    assert main(["queue", "move", "2", "1"]) == 0
    capsys.readouterr()
    assert main(["queue", "list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(item["number"], item["name"]) for item in data["items"]] == [(2, "second"), (1, "demo")]
    assert main(["queue", "list"]) == 0
    assert "2  Waiting       second" in capsys.readouterr().out
    assert main(["queue", "remove", "1", "2"]) == 0
    assert main(["queue", "remove", "1"]) == 2
    assert "no item 1" in capsys.readouterr().err
    assert main(["queue", "run"]) == 0
    assert capsys.readouterr().err == "Nothing in the queue waits for this computer.\n"
    for wrong in (["move", "1", "0"], ["move", "1", "x"], ["remove", "x"]):
        with pytest.raises(SystemExit, match="2"):
            main(["queue", *wrong])
        assert "out of range" in (printed := capsys.readouterr().err) or "'x' is not a whole number" in printed


def test_an_item_keeps_its_place_when_it_is_read() -> None:
    item = Item(4, "four", {})
    assert from_json(replace(RunQueue(), items=(item,), next_number=1).to_json()).next_number == 5


def test_each_machine_has_its_part_of_the_queue_and_its_own_program(tmp_path: Path) -> None:
    file = QueueFile(tmp_path / "queue.json")
    file.change(lambda queue: filled(4).assign([2, 4], "box").begin(2).begin(3).assign([3], "box"))
    queue = file.change(lambda queue: queue)
    assert numbers(queue.on("box")) == [2, 4]
    assert [item.state for item in queue.items] == ["waiting", "interrupted", "interrupted", "waiting"]
    assert queue.other_machines == ("box",)
    here, there = QueueRun(file), QueueRun(file, "box")
    taken = [here.take_next(), there.take_next()]
    assert [item and item.number for item in taken] == [3, 2], "interrupted ones first"
    with pytest.raises(DarkroomError, match="running the queue of box"):
        QueueRun(file, "box")
    there.close()
    assert [item.state for item in file.read().items] == ["waiting", "interrupted", "running", "waiting"]
    here.close()
    assert from_json(json.loads(json.dumps(queue.to_json()))) == queue


def test_a_run_on_another_machine_is_begun_there_and_followed_again(tmp_path: Path) -> None:
    item = filled(1).assign([1], "box").items[0]
    assert (request_of(item).kind, request_of(item).on) == ("train", "box")
    arguments = arguments_of(request_of(item), tmp_path / "config.json")
    assert arguments[0] == "train"
    assert "--on=box" in arguments
    begun = replace(item, state=RunStatus.INTERRUPTED, run_dir=str(tmp_path))
    followed = arguments_of(request_of(begun), tmp_path / "config.json")
    assert followed == ["remote", "attach", str(tmp_path), "--json-lines"]


def test_the_verb_refuses_a_machine_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "add", "#demo", "--on", "nobody"]) == 2
    assert "There is no machine 'nobody'" in capsys.readouterr().err
    assert main(["queue", "run", "--on", "nobody"]) == 2
    assert "There is no machine 'nobody'" in capsys.readouterr().err
    RemotesFile().add(Remote("box", "203.0.113.7"))
    assert main(["queue", "add", "#demo", "--on", "box"]) == 0
    assert main(["queue", "list"]) == 0
    assert "Waiting       demo on box" in capsys.readouterr().out


def test_other_machines_may_use_the_code_that_was_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(running, "detached_python", lambda arguments, *_: started.append(arguments) or os.getpid())
    RemotesFile().add(Remote("box", "203.0.113.7"))
    assert main(["queue", "add", "#demo", "--on", "box"]) == 0
    assert main(["queue", "run", "--only-next"]) == 0
    assert started == [], "only the next item of this computer"
    assert main(["queue", "run", "--allow-code-hash", "ab12"]) == 0
    assert started == [["-m", "trainer", "queue", "run", "--on=box", "--json-lines", "--allow-code-hash=ab12"]]


def _without_skip(queue: RunQueue) -> dict[str, Any]:
    item = queue.to_json()["items"][0]
    del item["is_skipped"]
    return item
