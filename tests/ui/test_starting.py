"""From pressing Start to a run: errors, questions, preview."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import pytest

from modules.config.codec import save_file
from modules.config.compare import fixed_on_resume
from modules.config.schema import Config
from modules.data.concept import Concept
from modules.settings.edit import set_path
from modules.system.file_lock import Holder
from modules.system.problem import Problem
from tests.ui.fake_engine import FakeEngine, started
from tests.ui.recorder import Recorder
from trainer.event_lines import to_line
from trainer.events import Event, PhaseChanged, RunFailed, RunFinished
from trainer.launch import RunHandle, RunRequest
from trainer.preflight import Preview, Report
from trainer.run_folder.backup import BackupInfo, write_backup
from trainer.run_folder.elsewhere import Elsewhere, note_elsewhere
from trainer.run_folder.run_dir import new_run_dir
from ui.app.run_ends import run_failure
from ui.features.run.model import Starter
from ui.features.run.questions import describe_changes
from ui.forms.findings import Findings
from ui.forms.model import FormModel
from ui.loop.pump import Pump
from ui.loop.run_session import RunSession
from ui.loop.run_state import RunState

PREVIEW = Preview(12, 4, 1, (("64x64", 12),), (("x/a.png", "an empty file"),), 12, 120)
WARNING = Problem("training.learning_rate", "That is a lot.", "warning")
ERROR = Problem("concepts", "No images.")


class Bench:
    """A starter with its collaborators and a scripted check."""

    def __init__(self, tmp_path: Path) -> None:
        self.form = FormModel(Config(general={"workspace_dir": str(tmp_path / "workspace")}))  # type: ignore[arg-type]
        self.workspace = tmp_path / "workspace"
        self.engine, self.asked, self.findings = FakeEngine(), Recorder(), Findings()
        self.pump = Pump(lambda _ms, _callback: None)
        self.problems: list[Problem] = []
        self.num_checks = 0
        self.checked_from: Path | None = None
        self.session = RunSession(self.pump.background, launch_run=self.engine.launch, check_config=self.check)
        self.pump.add_source(self.session.drain)
        self.happened: list[str] = []
        self.starter = Starter(
            self.form,
            self.session,
            self.pump,
            self.asked,
            self.findings,
            before_start=lambda: self.happened.append("before"),
        )

    def check(self, config: Config, *, resume_from: Path | None = None, **_: object) -> Report:
        self.num_checks += 1
        self.checked_from = resume_from
        return Report(tuple(self.problems), PREVIEW)

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            self.pump.tick()
            assert time.monotonic() < deadline

    def backup(self, step: int) -> BackupInfo:
        run_dir = new_run_dir(self.workspace, now=datetime(2026, 1, 1, 12, 0, step))
        return write_backup(
            run_dir,
            step=step,
            epoch=1,
            now=datetime(2026, 1, 1, 13),
            write=lambda f: (f / "x").write_text("x") and None,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_clean_config_starts_without_a_question(bench: Bench) -> None:
    bench.problems = [Problem("output.destination", "It will be replaced.", "info")]
    bench.starter.start()
    bench.wait_until(lambda: bench.engine.requests)
    assert bench.happened == ["before"]
    assert bench.asked.calls == []
    request = bench.engine.requests[0]
    assert (request.kind, request.config) == ("train", bench.form.config)


def test_a_process_that_cannot_be_started_is_a_failure_of_the_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was reported as a bug in Darkroom, with a traceback."""

    def launch(_request: RunRequest) -> RunHandle:
        raise OSError(errno.ENOSPC, "No space left on device", "/logs/child.json")

    monkeypatch.setattr(bench.session, "_launch", launch)
    bench.starter.start()
    bench.wait_until(lambda: bench.asked.asked("show_failure"))
    [[failure]] = bench.asked.asked("show_failure")
    assert "No space left on device" in failure.message
    assert not failure.details
    assert bench.starter.can_start


def test_a_preview_that_failed_is_tried_again(bench: Bench, logged_errors: list[str]) -> None:
    """A disk that was away for a moment: the page read "Reading settings and images…" until the next edit."""
    check = bench.session._check

    def fail(*_arguments: object, **_options: object) -> Report:
        raise OSError("The disk is away")

    bench.session._check = fail
    bench.starter.refresh_preview()
    bench.wait_until(lambda: logged_errors)
    logged_errors.clear()
    bench.session._check = check
    bench.starter.refresh_preview()
    bench.wait_until(lambda: bench.starter.report is not None)


def test_a_preview_that_comes_after_the_check_of_a_start_is_not_kept(bench: Bench) -> None:
    """Next to the end of the run there was no preview until the next edit: the report was that of older settings."""
    may_read, both_are_free, met = threading.Event(), threading.Barrier(2), list[int]()

    def check(config: Config, **_: object) -> Report:
        if config.training.epochs == 1:
            may_read.wait(120)
        return Report((), PREVIEW)

    bench.session._check = check
    bench.form.edit("training.epochs", 1)
    bench.starter.refresh_preview()
    bench.form.edit("training.epochs", 2)
    bench.starter.start()
    bench.wait_until(lambda: bench.engine.requests)
    assert bench.starter.current_report is not None
    may_read.set()
    for _ in range(2):  # both threads are through with what was submitted before
        bench.pump.background.run_reporting(lambda _report: both_are_free.wait(120), met.append)
    bench.wait_until(lambda: len(met) == 2)
    assert bench.starter.current_report is not None


def test_errors_are_listed_and_nothing_starts(bench: Bench) -> None:
    bench.problems = [WARNING, ERROR]
    bench.starter.start()
    bench.wait_until(lambda: bench.findings.items)
    assert [f.problem for f in bench.findings.items] == [ERROR, WARNING]
    assert bench.findings.items[1].place == "Training › Learning rate"
    assert bench.engine.requests == []
    assert bench.session.stage == "idle"


def test_an_invalid_entry_prevents_a_start(bench: Bench) -> None:
    bench.form.edit_text("training.epochs", "many")
    bench.starter.start()
    bench.wait_until(lambda: bench.findings.items)
    assert "not a whole number" in bench.findings.items[0].problem.message
    assert bench.engine.requests == []


def test_a_run_that_another_window_trains_is_not_offered_to_resume(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = bench.backup(3)
    bench.starter.look_for_backup()
    bench.wait_until(lambda: bench.starter.resumable == backup)
    elsewhere = replace(Holder.of(os.getpid()), pid=os.getppid())
    monkeypatch.setattr("trainer.run_folder.run_lock.holder_of", lambda _run_dir: elsewhere)
    bench.starter.look_for_backup()
    bench.wait_until(lambda: bench.starter.resumable is None)


def test_next_to_a_run_of_another_machine_no_other_one_is_offered_to_resume(bench: Bench) -> None:
    """Its end said that it can be resumed, and the button beside it resumed an earlier run of this computer."""
    backup, run_dir = bench.backup(3), new_run_dir(bench.workspace, now=datetime(2026, 1, 2))
    bench.session.show_past(RunState(started=started(str(run_dir))))
    bench.starter.look_for_backup()
    bench.wait_until(lambda: bench.starter.resumable == backup)
    note_elsewhere(run_dir, Elsewhere("box", "job", "/r/job", str(bench.workspace / "lora.safetensors")))
    bench.starter.look_for_backup()
    bench.wait_until(lambda: bench.starter.resumable is None)


def test_a_finished_run_is_not_offered_to_resume(bench: Bench) -> None:
    """The bottom bar, Home, the keys and the finder have one rule; a run that was resumed afterwards is offered."""
    backup = bench.backup(3)

    def offered_after(*events: Event) -> bool:
        (backup.run_dir / "events.jsonl").write_text("".join(f"{to_line(event)}\n" for event in events))
        looked: list[None] = []
        bench.starter.changed.subscribe(lambda: looked.append(None))
        bench.starter.look_for_backup()
        bench.wait_until(lambda: looked)
        return bench.starter.can_resume

    assert offered_after(RunFinished("stopped", 3, "Stopped."))
    assert not offered_after(RunFinished("finished", 3, "Finished."))
    assert not offered_after(RunFinished("stopped_early", 3, "Stopped early."))
    assert offered_after(RunFinished("finished", 3, "Finished."), PhaseChanged("loading"))


@pytest.mark.parametrize("severity", ["info", "warning"])
@pytest.mark.parametrize("answer", ["keep", "replace", "cancel", None])
def test_what_is_at_the_destination_is_kept_unless_the_user_replaces_it(
    bench: Bench, severity: Literal["info", "warning"], answer: str | None
) -> None:
    words = "models/lora.safetensors is the result of the run x. It is kept; the result will be models/lora-2."
    bench.problems = [Problem("output.destination", words, severity, remedy="destination")]
    bench.asked.answers["choose"] = answer
    bench.starter.start()
    bench.wait_until(lambda: bench.asked.calls)
    assert [call[1:] for call in bench.asked.asked("choose")] == [(words, ["cancel", "replace", "keep"])]
    assert len(bench.asked.calls) == 1
    assert [r.replaces for r in bench.engine.requests] == {"keep": [False], "replace": [True]}.get(answer or "", [])


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_warnings_are_confirmed(bench: Bench, is_confirmed: bool) -> None:
    bench.problems = [WARNING]
    bench.asked.answers["confirm_start"] = is_confirmed
    bench.starter.start()
    bench.wait_until(lambda: bench.asked.calls)
    assert bench.asked.calls == [("confirm_start", ([WARNING], PREVIEW))]
    assert len(bench.engine.requests) == is_confirmed
    assert bool(bench.findings.items) is not is_confirmed


def test_a_failed_check_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.session, "_check", lambda _config, **_: 1 / 0)
    bench.starter.start()
    bench.wait_until(lambda: bench.asked.asked("show_failure"))
    assert bench.findings.items[0].problem.severity == "error"
    assert bench.starter.can_start


def test_a_config_that_is_about_to_be_replaced_is_not_started(bench: Bench) -> None:
    """The file is read in the background, which may take long on a slow drive."""
    bench.form.awaited = "two.json"
    assert not bench.starter.can_start
    assert bench.starter.why_not == "Wait until two.json is loaded."
    bench.starter.start()
    assert bench.session.stage == "idle"
    bench.form.awaited = ""
    assert bench.starter.can_start


def test_start_twice_is_start_once(bench: Bench) -> None:
    bench.starter.start()
    bench.starter.start()
    bench.wait_until(lambda: bench.engine.requests)
    bench.starter.start()
    bench.pump.tick()
    assert len(bench.engine.requests) == 1


def test_an_earlier_run_can_be_resumed(bench: Bench) -> None:
    assert not bench.starter.can_resume
    bench.backup(3)
    newest = bench.backup(7)
    bench.starter.look_for_backup()
    bench.wait_until(lambda: bench.starter.resumable)
    assert bench.starter.resumable == newest
    bench.starter.resume()
    bench.wait_until(lambda: bench.engine.requests)
    assert (bench.engine.requests[0].kind, bench.engine.requests[0].resume_from) == ("resume", newest.path)
    assert bench.checked_from == newest.path
    assert not bench.starter.can_resume


@pytest.mark.parametrize("is_agreed", [True, False])
def test_a_run_resumes_with_its_own_settings(bench: Bench, is_agreed: bool) -> None:
    backup = bench.backup(3)
    save_file(bench.form.config, backup.path / "config.json")
    bench.form.edit_text("training.batch_size", "7")
    bench.form.edit_text("training.epochs", "77")  # may change
    bench.form.edit_text("training.learning_rate", "0.5")  # so may these
    bench.form.edit("training.optimizer.weight_decay", 0.25)
    bench.form.edit("parts.unet.stop_after", {"n": 5, "unit": "epoch"})
    bench.form.edit("parts.unet.train", False)
    changed = bench.form.config
    bench.starter.look_for_backup()
    bench.wait_until(lambda: bench.starter.resumable)
    bench.asked.answers["choose"] = "restore" if is_agreed else None
    bench.starter.resume()
    bench.wait_until(lambda: bench.asked.calls)
    ((_title, message, _answers),) = bench.asked.asked("choose")
    assert "Training › Batch size" in message
    assert "Model › UNet: Train" in message
    assert "Epochs;" not in message
    if not is_agreed:
        assert bench.form.config is changed
        return
    bench.wait_until(lambda: bench.engine.requests)
    config = bench.engine.requests[0].config
    assert (config.training.batch_size, config.training.epochs, config.training.learning_rate) == (1, 77, 0.5)
    assert config.training.optimizer.model_dump()["weight_decay"] == 0.25
    assert (config.part("unet").train, config.part("unet").stop_after.n) == (True, 5)
    bench.form.undo()
    assert bench.form.config == changed


def test_a_run_with_equal_settings_resumes_without_a_question(bench: Bench) -> None:
    backup = bench.backup(3)
    save_file(bench.form.config, backup.path / "config.json")
    bench.form.edit_text("training.epochs", "77")
    bench.starter.look_for_backup()
    bench.wait_until(lambda: bench.starter.resumable)
    bench.starter.resume()
    bench.wait_until(lambda: bench.engine.requests)
    assert bench.asked.calls == []


def test_a_run_whose_images_were_moved_resumes_with_their_new_folder(bench: Bench, tmp_path: Path) -> None:
    """The window offered to restore the folder that was gone, which ended in the error that had just been corrected."""
    backup = bench.backup(3)
    started = bench.form.config.model_copy(update={"concepts": (Concept(path=str(tmp_path / "old")),)})
    save_file(started, backup.path / "config.json")
    (tmp_path / "new").mkdir()
    bench.form.replace(started.model_copy(update={"concepts": (Concept(path=str(tmp_path / "new")),)}))
    bench.starter.look_for_backup()
    bench.wait_until(lambda: bench.starter.resumable)
    bench.starter.resume()
    bench.wait_until(lambda: bench.engine.requests)
    assert bench.asked.calls == []
    assert bench.engine.requests[0].config.concepts[0].path == str(tmp_path / "new")


def test_a_list_of_errors_says_that_no_run_can_start_only_while_one_is_left(bench: Bench) -> None:
    bench.problems = [Problem("training.batch_size", "Too large."), Problem("training.epochs", "Few.", "warning")]
    bench.starter.start()
    bench.wait_until(lambda: bench.findings.items)
    assert bench.findings.title == "Cannot start yet"
    bench.form.edit("training.batch_size", 2)
    bench.findings.drop_settled(bench.form.config)
    assert [f.problem.path for f in bench.findings.items] == ["training.epochs"]
    assert bench.findings.title == "The current settings"


def test_the_preview_of_another_model_is_not_shown_until_there_is_a_new_one(bench: Bench) -> None:
    """After a config of FLUX.1 was loaded, "Before you start" had the steps, time and memory of an SDXL embedding."""
    bench.starter.refresh_preview()
    bench.wait_until(lambda: bench.starter.report)
    bench.form.edit("training.epochs", 3)
    assert bench.starter.report is not None, "it is replaced when the new one is there"
    before = bench.form.config.model.base_model
    bench.form.edit("model.base_model", "owner/other")  # on another page, on which there is no preview
    assert bench.starter.report is None
    bench.form.edit("model.base_model", before)
    bench.starter.refresh_preview()
    bench.wait_until(lambda: bench.starter.report)


def test_the_preview_is_computed_once_per_config(bench: Bench) -> None:
    bench.starter.refresh_preview()
    bench.starter.refresh_preview()
    bench.wait_until(lambda: bench.starter.report)
    assert bench.num_checks == 1
    assert bench.starter.report is not None
    assert bench.starter.report.preview == PREVIEW
    bench.form.edit_text("training.epochs", "3")
    bench.starter.refresh_preview()
    bench.wait_until(lambda: bench.num_checks == 2)


def test_a_start_after_a_run_works(bench: Bench) -> None:
    for number in (1, 2):
        bench.starter.start()
        bench.wait_until(lambda number=number: len(bench.engine.requests) == number)  # type: ignore[misc]
        assert bench.engine.run is not None
        bench.engine.run.end(RunFinished("finished", 1, "Done."))
        bench.wait_until(lambda: bench.session.stage == "idle")


def test_a_failure_includes_its_details_file(tmp_path: Path) -> None:
    file = tmp_path / "details.txt"
    file.write_text("Traceback ...", encoding="utf-8")
    reported = run_failure(RunFailed("It broke.", "Fix it.", str(file), "/backup/step-5"))
    assert (reported.message, reported.details, reported.details_file) == ("It broke.", "Traceback ...", file)
    assert reported.advice == "Fix it. The newest backup is /backup/step-5: Resume continues from it."
    reported = run_failure(RunFailed("It broke.", details_path=str(tmp_path / "gone.txt")))
    assert (reported.details, reported.details_file) == ("", None)
    reported = run_failure(RunFailed("The disk is full.", "Free some space."), "/runs/one")  # before the first backup
    assert reported.advice.startswith(
        "Free some space. This run has no backup, so it can only begin again, with Start."
    )
    assert reported.advice.endswith("Its folder is /runs/one.")


def test_the_number_of_steps_is_known_for_runs_of_the_same_length(bench: Bench) -> None:
    starter, form = bench.starter, bench.form
    starter.refresh_preview()
    bench.wait_until(lambda: starter.report)
    form.edit("training.learning_rate", 2e-5)
    assert starter.known_steps(form.config) == 120
    form.edit("training.epochs", form.config.training.epochs + 1)  # as another config that is loaded
    assert starter.known_steps(form.config) == 0


def test_another_method_is_one_change_with_both_names() -> None:
    """It used to be a list of each setting of both methods, and a bare "Rewards;"."""
    before = Config()
    now, _ = set_path(before, "training.method", {"name": "online_dpo"})
    changes = describe_changes(before, now, fixed_on_resume(before, now))
    assert changes == "Top bar › Method (Denoising, now Online DPO)"
    now, _ = set_path(now, "training.batch_size", 7)
    assert describe_changes(before, now, fixed_on_resume(before, now)).startswith("Training › Batch size; Top bar")


@pytest.mark.parametrize("stopped_early", [False, True])
def test_a_finished_run_is_trained_longer_from_its_backup(bench: Bench, stopped_early: bool) -> None:
    """One that has stopped early would do so again at once: its evaluations without a new best are in the backup."""
    backup = bench.backup(5)
    tree = {"training": {"epochs": 10}, "validation": {"early_stopping_patience": 2}, "reward": {"stop_at_reward": 3.0}}
    save_file(Config.model_validate(tree), backup.path / "config.json")
    bench.starter.train_longer(backup, 14, stopped_early=stopped_early)
    bench.wait_until(lambda: bench.engine.requests)
    request = bench.engine.requests[0]
    assert (request.kind, request.resume_from) == ("resume", backup.path)
    assert (request.config.training.epochs, bench.form.source.name) == (14, backup.run_dir.name)
    limits = request.config.validation.early_stopping_patience, request.config.reward.stop_at_reward
    assert limits == ((0, None) if stopped_early else (2, 3.0))
