"""The log of a run's events: a full disk keeps no event from the listener, and lines are whole or follow later."""

from __future__ import annotations

import json
import logging
import time
from datetime import datetime
from pathlib import Path

import pytest

from modules.system.errors import DarkroomError
from tests.builders.full_disk import FullDisk
from trainer.events import Event, PhaseChanged, RunFailed, RunFinished, WarningRaised
from trainer.run_folder.event_log import EVENTS_FILE, EventLog, read_events, stamp
from trainer.run_folder.run_lock import LOCK_FILE

NOW = datetime(2026, 3, 4, 5, 6, 7)


def new_log() -> tuple[EventLog, list[Event]]:
    received: list[Event] = []
    return EventLog(received.append, lambda: NOW), received


def test_times_have_the_offset_of_their_zone(tmp_path: Path) -> None:
    """The log of a run on another machine is continued and read here, where the same clock may show another time."""
    log, _ = new_log()
    log.open(tmp_path)
    log.emit(WarningRaised("first"))
    log.close()
    written = datetime.fromisoformat(json.loads((tmp_path / EVENTS_FILE).read_text())["time"])
    assert written.utcoffset() is not None
    assert written.timestamp() == NOW.timestamp()


def test_a_nonsensical_time_zone_fails_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended each run with a traceback at its first event. Windows knows no local time before 1970 either."""
    monkeypatch.setenv("TZ", "XXX-99:99")
    time.tzset()
    try:
        assert stamp(datetime(2026, 1, 2, 3, 4)) == "2026-01-02T03:04:00.000+00:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_pause_is_reported_and_after_it_the_work_before_it() -> None:
    """Also a pause that keeps the memory, after one that has freed it; it was shown as work."""
    log, received = new_log()
    log.report_pause(True)
    log.report_pause(False)
    sampling, freed = PhaseChanged("sampling", "5 images"), PhaseChanged("paused", "the card's memory is free")
    log.emit(sampling)
    log.emit(PhaseChanged("sampling"))
    log.report_pause(True)
    log.emit(freed)
    log.report_pause(True)
    log.report_pause(True)
    log.report_pause(False)
    plain = PhaseChanged("paused")
    assert received == [plain, sampling, plain, freed, plain, sampling]


def test_a_full_disk_keeps_no_event_from_the_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write used to raise, in the loop and again at the outer edge: the run ended without an event."""
    disk = FullDisk(monkeypatch, tmp_path)
    log, received = new_log()
    log.open(tmp_path)
    first, second, failed = WarningRaised("first"), WarningRaised("second"), RunFailed("The disk is full.")
    log.emit(first)
    disk.is_full = True
    for event in (second, failed):
        log.emit(event)
    logging.getLogger("darkroom.test").warning("to log.txt")
    log.close()
    assert [received[0], received[1], received[3]] == [first, second, failed]
    assert isinstance(received[2], WarningRaised)
    assert EVENTS_FILE in received[2].message
    assert len(received) == 4, "it is reported once"
    assert list(read_events(tmp_path)) == [first]
    assert not (tmp_path / LOCK_FILE).exists()


def test_the_ending_stays_the_last_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ending in (RunFailed("The disk is full."), RunFinished("stopped", 1, "Stopped.")):
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, tmp_path)
            log, received = new_log()
            log.open(tmp_path)
            disk.is_full = True
            log.emit(ending)
            log.close()
        assert received == [ending]


def test_what_found_no_room_is_written_when_there_is_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch, tmp_path)
    log, received = new_log()
    log.open(tmp_path)
    for n in range(4):
        disk.is_full = n in (1, 2)
        log.emit(WarningRaised(f"number {n}"))
    log.close()
    assert len(received) == 5
    assert {e.message for e in read_events(tmp_path) if isinstance(e, WarningRaised)} >= {
        f"number {n}" for n in range(4)
    }
    assert set(read_events(tmp_path)) == set(received)


def test_a_line_torn_by_a_kill_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / EVENTS_FILE).write_text('{"event": "WarningRai')
    log, received = new_log()
    log.emit(WarningRaised("before the folder was there"))
    log.open(tmp_path)
    log.close()
    assert list(read_events(tmp_path)) == received


def test_the_file_is_opened_under_the_lock_alone(tmp_path: Path) -> None:
    first, _ = new_log()
    second, received = new_log()
    first.open(tmp_path)
    second.emit(WarningRaised("of the second run"))
    with pytest.raises(DarkroomError, match="in use"):
        second.open(tmp_path)
    assert second.run_dir is None
    second.emit(RunFailed("in use"))
    second.close()
    assert (tmp_path / LOCK_FILE).exists(), "the lock is the first run's"
    first.emit(WarningRaised("of the first run"))
    first.close()
    assert list(read_events(tmp_path)) == [WarningRaised("of the first run")]
    assert len(received) == 2
    third, _ = new_log()
    third.open(tmp_path)
    third.close()
