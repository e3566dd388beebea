"""The pump and the background threads behind it."""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from modules.system.process_setup import SWITCH_INTERVAL_SECONDS
from ui.loop.background import Background
from ui.loop.pump import BUSY_SWITCH_INTERVAL_SECONDS, FIRST_SLICE_SECONDS, Pump


class Clockwork:
    """Replaces Tk's `after`: keeps the scheduled calls."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def after(self, _ms: int, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def turn(self) -> None:
        due, self.waiting = self.waiting, []
        for callback in due:
            callback()


class SlowClock:
    """Time that passes only where a test sets it, and when something sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SlowClock:
    """The clock of the pump and of its jobs: a turn ends early only where a test lets time pass, on any machine."""
    clock = SlowClock()
    for module in ("pump", "background"):
        monkeypatch.setattr(f"ui.loop.{module}.time", clock)
    return clock


def turn_until(pump: Pump, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        pump.tick()
        assert time.monotonic() < deadline


def test_results_come_on_the_thread_that_turns() -> None:
    pump = Pump(Clockwork().after)
    seen: list[tuple[str, threading.Thread]] = []
    worked: list[threading.Thread] = []
    pump.background.run(lambda: worked.append(threading.current_thread()), lambda _: seen.append(("done", threading.current_thread())))  # fmt: skip  # noqa: E501
    turn_until(pump, lambda: seen)
    assert seen == [("done", threading.main_thread())]
    assert worked[0] is not threading.main_thread()


def test_a_failed_job_calls_its_error_handler() -> None:
    pump, failures = Pump(Clockwork().after), []

    def broken() -> None:
        raise ValueError("no")

    pump.background.run(broken, lambda _: None, failures.append)
    turn_until(pump, lambda: failures)
    assert isinstance(failures[0], ValueError)


def test_a_failed_job_without_a_handler_is_logged(logged_errors: list[str]) -> None:
    pump = Pump(Clockwork().after)
    pump.background.run(lambda: 1 / 0, lambda _: None)
    turn_until(pump, lambda: logged_errors)
    assert "background job failed" in logged_errors[0]
    logged_errors.clear()


def test_a_cancelled_job_is_not_delivered() -> None:
    pump, seen = Pump(Clockwork().after), []
    gate = threading.Event()
    job = pump.background.run(gate.wait, lambda _: seen.append("cancelled"))
    job.cancel()
    gate.set()
    pump.background.run(lambda: None, lambda _: seen.append("other"))
    turn_until(pump, lambda: "other" in seen)
    assert seen == ["other"]


def test_a_job_that_is_cancelled_under_way_keeps_nothing_of_its_window() -> None:
    """A window that was closed while it read the presets stayed in memory until they were read."""

    class View:
        def show(self, _result: object) -> None: ...

    background, begun, released, view = Background(), threading.Barrier(3), threading.Event(), View()
    gone = weakref.ref(view)

    def work() -> None:
        begun.wait(120)
        released.wait(120)

    under_way = [background.run(work, view.show) for _ in range(2)]
    begun.wait(120)  # on both threads
    waiting = background.run(lambda kept=view: None, view.show)  # type: ignore[misc]
    for job in (*under_way, waiting):
        job.cancel()
    del view
    gc.collect()
    is_gone = gone() is None
    released.set()
    assert is_gone


def test_an_idle_thread_keeps_nothing_of_its_last_job() -> None:
    class Big:
        pass

    background, big, seen = Background(), Big(), []
    gone = weakref.ref(big)
    background.run(lambda kept=big: None, lambda _: seen.append(1))  # type: ignore[misc]
    del big
    deadline = time.monotonic() + 120
    while not seen and time.monotonic() < deadline:
        background.drain(math.inf)
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
    assert gone() is None


def test_repeated_redraw_requests_run_once() -> None:
    pump, drawn = Pump(Clockwork().after), []
    for n in range(5):
        pump.redraw_soon("chart", lambda n=n: drawn.append(n))  # type: ignore[misc]
    pump.redraw_soon("log", lambda: drawn.append("log"))
    assert not pump.is_idle
    pump.tick()
    assert drawn == [4, "log"]
    pump.tick()
    assert drawn == [4, "log"]


def test_a_throttled_redraw_is_delayed_but_not_lost() -> None:
    pump, drawn = Pump(Clockwork().after), []
    pump.redraw_soon("chart", lambda: drawn.append(1), at_most_every_seconds=1000)
    pump.tick()
    pump.redraw_soon("chart", lambda: drawn.append(2), at_most_every_seconds=1000)
    pump.tick()
    assert drawn == [1]
    assert not pump.is_idle
    pump.redraw_soon("chart", lambda: drawn.append(3))
    pump.tick()
    assert drawn == [1, 3]
    pump.redraw_soon("chart", lambda: drawn.append(4))
    pump.forget("chart")
    pump.tick()
    assert drawn == [1, 3]


def test_no_budget_no_redraw_yet() -> None:
    pump, drawn = Pump(Clockwork().after), []
    pump.redraw_soon("a", lambda: drawn.append("a"))
    pump.tick(budget_seconds=-1.0)
    assert drawn == []
    pump.tick()
    assert drawn == ["a"]


def slices(done: list[int], count: int) -> Iterator[None]:
    for n in range(count):
        done.append(n)
        yield


def test_sliced_work_is_done_over_many_turns(clock: SlowClock) -> None:
    pump, done = Pump(Clockwork().after), []

    def slow() -> Iterator[None]:
        for n in range(8):
            clock.now += FIRST_SLICE_SECONDS
            done.append(n)
            yield

    pump.work_through("page", slow())
    for num_turns in range(8):
        assert done == list(range(num_turns + 1))
        pump.tick()
    assert pump.is_idle


def test_finish_runs_the_rest_now() -> None:
    pump, done = Pump(Clockwork().after), []
    pump._tasks["page"] = slices(done, 5)
    pump.finish("page")
    assert done == [0, 1, 2, 3, 4]
    assert pump.is_idle
    pump.finish("page")


def test_a_new_task_replaces_the_old_one_of_its_key() -> None:
    pump, old, new = Pump(Clockwork().after), [], []
    pump._tasks["page"] = slices(old, 3)
    pump.work_through("page", slices(new, 2))
    turn_until(pump, lambda: pump.is_idle)
    assert (old, new) == ([], [0, 1])


def test_failed_work_is_not_retried_and_is_reported(logged_errors: list[str]) -> None:
    pump = Pump(Clockwork().after)

    def broken() -> Iterator[None]:
        raise ValueError("no")
        yield

    pump.work_through("page", broken())
    assert pump.is_idle
    assert "ValueError: no" in logged_errors.pop()


def test_it_runs_until_stopped() -> None:
    clock = Clockwork()
    pump, turns = Pump(clock.after), []
    pump.add_source(lambda _deadline: turns.append(1) or False)
    pump.start()
    for _ in range(3):
        clock.turn()
    pump.stop()
    clock.turn()
    clock.turn()
    assert len(turns) == 3
    assert clock.waiting == []


def test_what_fails_stops_nothing_else(logged_errors: list[str]) -> None:
    """A job's result, a source, a redraw and a task that raise, on each turn, before others of their kind."""
    clock, done = Clockwork(), []
    pump = Pump(clock.after)

    def broken(*_arguments: object) -> bool:
        raise ValueError("no")

    def failing() -> Iterator[None]:
        yield
        broken()

    pump.add_source(broken)
    pump.add_source(lambda _deadline: done.append("source") or False)
    for key, draw in (("a", broken), ("b", lambda: done.append("redraw"))):
        pump.redraw_soon(key, draw)
    pump._tasks.update({"a": failing(), "b": slices([], 3)})
    pump.background.run(lambda: 1, broken)
    pump.background.run(lambda: 2, lambda _result: done.append("job"))
    pump.start()
    deadline = time.monotonic() + 120
    while not ({"source", "redraw", "job"} <= set(done) and pump.is_idle):
        clock.turn()
        assert time.monotonic() < deadline
    assert len(logged_errors) >= 4
    logged_errors.clear()


def test_a_redraw_that_waits_for_quiet_is_put_off_by_each_request() -> None:
    pump, drawn = Pump(lambda _ms, _call: None), list[str]()
    pump.redraw_soon("files", lambda: drawn.append("now"), quiet_seconds=1000)
    pump.tick()
    assert drawn == []
    assert not pump.is_idle
    pump.redraw_soon("files", lambda: drawn.append("now"))
    pump.tick()
    assert drawn == ["now"]


def test_tasks_started_between_two_turns_share_their_first_slice(clock: SlowClock) -> None:
    pump, done = Pump(Clockwork().after), []

    def slow(name: str) -> Iterator[None]:
        for _ in range(4):
            clock.now += 0.6 * FIRST_SLICE_SECONDS
            done.append(name)
            yield

    pump.work_through("page", slow("page"))
    pump.work_through("form on it", slow("form"))
    assert done == ["page", "page"]
    pump.tick()
    assert done == ["page", "page", "page"]
    pump.work_through("another", slow("another"))  # of the next turn
    assert done == ["page", "page", "page", "another", "another"]


def test_jobs_give_way_to_a_busy_window_and_not_forever(clock: SlowClock, monkeypatch: pytest.MonkeyPatch) -> None:
    pump = Pump(Clockwork().after)
    pump.background.give_way()
    assert clock.now == 100.0
    pump.redraw_soon("chart", lambda: None)
    pump.tick()
    pump.background.give_way()
    assert 100.0 < clock.now < 100.05
    pump.background.give_way(1, 20)
    assert clock.now < 100.05
    begun = clock.now
    monkeypatch.setattr(clock, "sleep", lambda seconds: (SlowClock.sleep(clock, seconds), pump.expect_drawing()))
    pump.expect_drawing()
    pump.background.give_way()
    assert begun < clock.now < begun + 0.2


def test_short_jobs_do_not_wait_for_those_that_report() -> None:
    """Two estimates of a new model's memory kept the captions of a concept from appearing for minutes."""
    pump, seen = Pump(Clockwork().after), []
    end = threading.Event()
    for _ in range(3):
        pump.background.run_reporting(lambda _report: end.wait(60), seen.append, progress=print)
    pump.background.run(lambda: "short", seen.append)
    turn_until(pump, lambda: seen)
    assert seen == ["short"]
    end.set()
    turn_until(pump, lambda: len(seen) == 4)


def test_a_reporting_job_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pump, seen = Pump(Clockwork().after), []
    ways: list[tuple[object, ...]] = []
    monkeypatch.setattr(pump.background, "give_way", lambda *progress: ways.append(progress))
    pump.background.run_reporting(lambda report: report("scanning", 1, 2), seen.append, progress=print)
    turn_until(pump, lambda: seen)
    assert len(ways) == 1


def test_threads_take_turns_faster_while_the_window_draws() -> None:
    interval, seen = sys.getswitchinterval(), []
    try:
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        pump = Pump(Clockwork().after)
        pump.redraw_soon("chart", lambda: seen.append(sys.getswitchinterval()))
        pump.tick()
        assert seen == [pytest.approx(BUSY_SWITCH_INTERVAL_SECONDS)]
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
        pump.work_through("page", slices([], 1))
        assert sys.getswitchinterval() == pytest.approx(BUSY_SWITCH_INTERVAL_SECONDS)  # Tk draws after it
        pump.tick()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_SECONDS)
        sys.setswitchinterval(0.005)  # not an interpreter beside a window
        pump.work_through("page", slices([], 1))
        assert sys.getswitchinterval() == pytest.approx(0.005)
    finally:
        sys.setswitchinterval(interval)
