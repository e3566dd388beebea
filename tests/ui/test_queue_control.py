"""The queue in the window: one run after another through the session, failures, stops, other programs. No Tk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.settings.edit import set_path
from tests.ui.fake_engine import FakeEngine, FakeRun, started, step
from trainer.commands import Stop
from trainer.events import Event, RunFailed, RunFinished
from trainer.launch import RunHandle, RunRequest
from trainer.preflight import Report
from trainer.run_folder.inbox import INBOX_FILE
from trainer.run_queue.file import QueueFile
from trainer.run_queue.items import RunQueue
from trainer.run_queue.running import QueueRun, request_of
from trainer.run_status import RunStatus
from ui.features.queue.model import COMPLETE, QueueControl
from ui.features.queue.rows import status_line
from ui.loop.pump import Pump
from ui.loop.run_session import RunSession

FINISHED = RunFinished("finished", 40, "Finished after 40 steps.")
STOPPED = RunFinished("stopped", 4, "Stopped after 4 steps.")
FAILED = RunFailed("No memory.", "Use less.")


class Bench:
    """A queue of some items, with a session and a fake engine."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.file = QueueFile(folder / "queue.json")
        for number, name in enumerate(names, 1):
            config, _ = set_path(Config(), "training.epochs", number)
            self.file.change(lambda queue, name=name, config=config: queue.add(name, config))  # type: ignore[misc]
        self.engine = FakeEngine()
        self.pump = Pump(lambda _ms, _callback: None)
        self.session = RunSession(
            self.pump.background, launch_run=self.engine.launch, check_config=lambda config, **_: Report((), None)
        )
        self.pump.add_source(self.session.drain)
        self.said: list[str] = []
        self.others: list[tuple[str, ...]] = []
        self.control = QueueControl(
            self.file,
            self.session,
            self.pump.background,
            launch_child=self.engine.launch_child,
            before_run=lambda _request: None,
            notify=self.said.append,
            start_other_machines=lambda file: self.others.append(file.read().other_machines),
        )
        self.pump.add_source(self.control.look)
        self.control.refresh()
        self.wait_until(lambda: len(self.control.queue.items) == len(names))

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            self.pump.tick()
            assert time.monotonic() < deadline, self.states

    def run(self) -> FakeRun:
        """Run the queue and return its first run."""
        self.control.run()
        return self.next_run(1)

    def next_run(self, number: int) -> FakeRun:
        self.wait_until(lambda: len(self.engine.children) == number and self.session.is_active)
        assert self.engine.run is not None
        return self.engine.run

    @property
    def states(self) -> list[str]:
        return [item.state for item in self.file.read().items]

    def at_rest(self) -> None:
        self.wait_until(lambda: not self.control.is_running and self.session.stage == "idle")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, "one", "two")
    yield made
    if made.engine.run is not None:
        made.engine.run.over.set()
    made.control.close()


def ends(run: FakeRun, *events: Event) -> None:
    run.end(*events)


def test_two_runs_one_after_the_other_followed_like_any_run(bench: Bench) -> None:
    run = bench.run()
    assert run.request.config.training.epochs == 1
    run.emit(started("/tmp/runs/one"), step(1))
    bench.wait_until(lambda: bench.session.state.step is not None)
    bench.wait_until(lambda: bench.file.read().item(1).run_dir == "/tmp/runs/one")
    assert bench.states == ["running", "waiting"]
    bench.wait_until(lambda: status_line(bench.control) == "Training one, 1 run left.")
    assert bench.control.owns_run
    ends(run, FINISHED)
    second = bench.next_run(2)
    assert second.request.config.training.epochs == 2
    assert bench.states == ["finished", "running"]
    ends(second, FINISHED)
    bench.at_rest()
    assert bench.states == ["finished", "finished"]
    assert COMPLETE in bench.said
    assert bench.file.runner is None


@pytest.mark.parametrize("continues_after", [True, False])
def test_after_a_failure_it_continues_or_stops_as_chosen(bench: Bench, continues_after: bool) -> None:
    bench.control.choose_after_failure("continue" if continues_after else "stop")
    bench.wait_until(lambda: bench.control.queue.after_failure == ("continue" if continues_after else "stop"))
    ends(bench.run(), FAILED)
    if continues_after:
        ends(bench.next_run(2), FINISHED)
    bench.at_rest()
    assert bench.states == ["failed", "finished" if continues_after else "waiting"]
    assert bench.file.read().item(1).message == "No memory. Use less."
    assert any("(failed)" in words for words in bench.said) is not continues_after
    assert (f"{COMPLETE} 1 run failed." in bench.said) is continues_after


def test_a_child_that_ends_without_a_word_is_a_failure(bench: Bench) -> None:
    bench.control.choose_after_failure("stop")
    bench.wait_until(lambda: bench.control.queue.after_failure == "stop")
    ends(bench.run())
    bench.at_rest()
    assert bench.states == ["crashed", "waiting"]
    assert "ended unexpectedly" in bench.file.read().item(1).message


def test_a_skip_that_comes_too_late_does_not_stop_the_next_run(bench: Bench) -> None:
    """The run had ended while the skip was written: the next one was stopped, and with it the queue."""
    run = bench.run()
    run.emit(started("/tmp/runs/one"))
    bench.wait_until(lambda: bench.control.can_skip(bench.control.queue.running))
    late: list[Callable[[], object]] = []
    write = bench.control.change
    bench.control.change = lambda change, message="", done=None: late.append(  # type: ignore[method-assign]
        lambda: write(change, message, done)
    )
    bench.control.skip(bench.control.queue.running)
    ends(run, FINISHED)
    second = bench.next_run(2)
    bench.wait_until(lambda: bench.control.current is not None and bench.control.current.number == 2)
    late[0]()
    bench.wait_until(lambda: bench.file.read().item(1).is_skipped)
    for _ in range(20):
        bench.pump.tick()
    assert bench.session.stage == "running"
    ends(second, FINISHED)
    bench.at_rest()


def test_a_window_ends_although_the_queue_cannot_be_written(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """It stayed, without its pump, and could only be killed; a run lost what it had trained since its backup."""
    bench.run()

    def write() -> None:
        raise OSError("the disk is full")

    bench.control._pending_writes.append(write)
    bench.control.close()
    assert "could not be written" in caplog.text
    assert not bench.control.is_running
    QueueRun(bench.file).close()  # which another program can run now


def test_stop_stops_the_queue_and_skip_only_the_run(bench: Bench) -> None:
    run = bench.run()
    bench.wait_until(lambda: bench.control.can_skip(bench.control.queue.running))
    bench.control.skip(bench.control.queue.running)
    bench.wait_until(lambda: run.desk.is_stop_requested)
    ends(run, STOPPED)
    second = bench.next_run(2)
    bench.session.stop()
    ends(second, STOPPED)
    bench.at_rest()
    assert bench.states == ["stopped", "stopped"]
    assert any("after two" in said for said in bench.said)


def test_it_can_stop_after_the_current_run(bench: Bench) -> None:
    run = bench.run()
    bench.control.stop_after_current()
    assert all(part in status_line(bench.control) for part in ("Training one", "stops"))
    ends(run, FINISHED)
    bench.at_rest()
    assert bench.states == ["finished", "waiting"]


def test_it_waits_for_a_run_that_was_started_otherwise(bench: Bench) -> None:
    bench.session.begin(RunRequest(Config()))
    other = bench.engine.run
    assert other is not None
    bench.control.run()
    bench.wait_until(lambda: bench.control.is_running)
    assert not bench.engine.children
    assert not bench.control.owns_run
    ends(other, FINISHED)
    ends(bench.next_run(1), FINISHED)
    ends(bench.next_run(2), FINISHED)
    bench.at_rest()


def test_the_next_config_is_edited_while_one_runs(bench: Bench) -> None:
    run = bench.run()
    config, _ = set_path(bench.control.queue.item(2).config, "training.epochs", 99)
    bench.control.edit(2)
    bench.control.save_edited(config)
    assert bench.control.editing is None
    bench.wait_until(lambda: bench.file.read().item(2).config == config)
    bench.control.edit(1)
    bench.control.save_edited(config)
    bench.wait_until(lambda: any("cannot be edited: it has begun" in words for words in bench.said))
    ends(run, FINISHED)
    assert bench.next_run(2).request.config.training.epochs == 99
    ends(bench.next_run(2), FINISHED)
    bench.at_rest()


def test_a_window_that_closes_at_the_end_of_a_run_records_it(bench: Bench) -> None:
    run = bench.run()
    run.end(STOPPED)
    bench.session.drain(time.perf_counter() + 5)  # the end, but no result of the background yet
    bench.session.drain(time.perf_counter() + 5)
    bench.control.close()
    assert bench.states == ["stopped", "waiting"]
    assert bench.file.runner is None


def test_a_run_that_is_stopped_to_close_the_window_is_resumed_by_the_next(bench: Bench) -> None:
    run = bench.run()
    bench.control.leave()
    bench.session.stop()
    ends(run, STOPPED)
    bench.at_rest()
    bench.control.close()
    assert bench.states == ["interrupted", "waiting"]
    assert bench.file.read().next == bench.file.read().item(1)


def test_a_killed_program_leaves_an_item_that_this_window_resumes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "one", "two")
    bench.file.change(lambda queue: queue.begin(1))
    bench.control.refresh()
    bench.wait_until(lambda: bench.control.interrupted_item is not None)
    run = bench.run()
    assert run.request.kind == "train", "without a backup it starts again"
    ends(run, FINISHED)
    ends(bench.next_run(2), FINISHED)
    bench.at_rest()
    assert bench.states == ["finished", "finished"]


def test_a_queue_that_another_program_runs_is_only_shown(bench: Bench) -> None:
    other = QueueRun(bench.file)  # in this process, but with a lock of its own, as another program has
    bench.file.change(lambda queue: queue.begin(1))
    bench.control.refresh()
    bench.wait_until(lambda: bench.control.queue.running is not None)
    assert bench.control.is_run_elsewhere
    assert bench.control.interrupted_item is None
    assert all(part in status_line(bench.control) for part in ("outside this window", "1 run left"))
    bench.control.run()
    bench.wait_until(lambda: bench.said)
    assert not bench.control.is_running
    assert bench.said[0].startswith("Another program is running the queue")
    other.close()


def test_a_child_that_cannot_be_started_is_a_failed_item(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "one")

    def refuse(_request: RunRequest) -> RunHandle:
        raise OSError("no more processes")

    bench.control._launch = refuse
    bench.control.run()
    bench.wait_until(lambda: bench.states == ["failed"])
    bench.at_rest()
    assert "no more processes" in bench.file.read().item(1).message
    assert bench.session.stage == "idle"


def test_a_file_that_cannot_be_read_is_said(bench: Bench) -> None:
    bench.file.path.write_text("{")
    bench.control.refresh()
    bench.wait_until(lambda: bench.control.problem)
    assert "cannot be read" in status_line(bench.control)
    bench.control.add("three", Config())
    bench.wait_until(lambda: len(bench.said) > 1)
    assert bench.file.path.read_text() == "{"


def test_pause_reaches_the_child(bench: Bench) -> None:
    run = bench.run()
    bench.session.pause()
    assert run.desk.is_paused
    bench.session.unpause()
    assert not run.desk.is_paused
    bench.session.send(Stop())
    assert run.desk.is_stop_requested
    ends(run, STOPPED)
    bench.at_rest()


def test_the_file_can_be_run_again_by_another_program_afterwards(bench: Bench) -> None:
    ends(bench.run(), FAILED)
    ends(bench.next_run(2), FINISHED)
    bench.at_rest()
    QueueRun(bench.file).close()


def test_a_result_that_arrives_late_does_not_hide_a_newer_queue(bench: Bench) -> None:
    """A slow reading replaced the queue by the older one that it had read, until the file changed again."""
    old = bench.file.read()
    bench.file.change(lambda queue: queue.add("three", Config()))
    bench.control._keep("", old)
    deadline = time.monotonic() + 120
    while len(bench.control.queue.items) != 3:
        bench.control.look(0.0)
        bench.pump.tick()
        assert time.monotonic() < deadline


def test_an_item_whose_program_ends_while_the_queue_is_read_is_interrupted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program was looked for after the file was read: the item stayed running, and nothing looked again."""
    there, read = QueueRun(bench.file), QueueFile.read
    item = there.take_next()
    assert item is not None

    def read_and_end(file: QueueFile) -> RunQueue:
        queue = read(file)
        there.close()
        return queue

    monkeypatch.setattr(QueueFile, "read", read_and_end)
    bench.control.refresh()
    bench.wait_until(lambda: not bench.control.runners and bench.control.queue.item(1).state is not RunStatus.WAITING)
    assert bench.control.interrupted_item is not None


def test_other_machines_train_their_items_next_to_those_of_this_one(bench: Bench, tmp_path: Path) -> None:
    control, run_dir = bench.control, tmp_path / "runs" / "one"
    run_dir.mkdir(parents=True)
    control.change(lambda queue: queue.assign([1], "box"))
    bench.wait_until(lambda: control.queue.other_machines)
    run = bench.run()
    assert run.request.config.training.epochs == 2, "the item of this computer"
    assert bench.others == [("box",)]
    there = QueueRun(bench.file, "box")  # as the process that was started has it
    item = there.take_next()
    assert item is not None
    there.note(item, started(str(run_dir)))
    bench.wait_until(lambda: "box" in control.runners and control.queue.item(1).run_dir)
    assert bench.states == ["running", "running"]
    assert not control.can_run
    assert not control.can_skip(None)
    control.skip(control.queue.item(1))
    bench.wait_until(lambda: (run_dir / INBOX_FILE).exists())
    assert not run.desk.is_stop_requested, "it trains on"
    ends(run, FINISHED)
    bench.at_rest()
    there.close()
    bench.wait_until(lambda: control.interrupted_item is not None and control.can_run)
    assert bench.states == ["interrupted", "finished"], "it may have continued there"
    assert request_of(control.queue.item(1)).kind == "follow"
