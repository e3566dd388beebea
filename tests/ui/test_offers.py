"""What the window offers by itself about runs: resuming after a crash, forks, the queue. No Tk."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file as save_tensors

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.settings.edit import set_path
from tests.ui.test_starting import Bench
from tests.unit.test_run_records import started, step, write_run
from trainer.events import RunFinished
from trainer.launch import RunRequest
from trainer.run_folder.backup import BackupInfo, write_backup
from trainer.run_folder.fork import ForkSource
from trainer.run_folder.records import RunRecord, read_record
from trainer.run_queue.file import QueueFile
from ui.app.offers import EDITED, FORK, QUEUE, Offers
from ui.features.queue.model import QueueControl
from ui.features.run.model import CHECKING, QUEUE_RUNS, RUN_IN_PROGRESS
from ui.features.runs.fork_window import fork_choices, fork_config, proposed_name, with_name
from ui.forms.preferences import Preferences, UiSettings
from ui.widgets.notices import CRASHED_RUN, Notices


class Desk(Bench):
    """A starter and a queue with the notices about them."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.asked.answers["ask_text"] = "second"
        self.file = QueueFile(tmp_path / "queue.json")
        self.notices, self.preferences = Notices(), Preferences(UiSettings())
        self.shown: list[object] = []
        self.queue = QueueControl(
            self.file,
            self.session,
            self.pump.background,
            launch_child=self.engine.launch_child,
            before_run=lambda _request: None,
            notify=lambda _text: None,
        )
        self.offers = Offers(
            self.notices,
            self.starter,
            self.queue,
            self.preferences,
            self.pump.background,
            show_run=self.shown.append,
            show_queue=lambda: self.shown.append("queue"),
            save_edited=lambda: self.queue.save_edited(self.form.config),
        )

    def keys(self) -> list[str]:
        return [notice.key for notice in self.notices.items]

    def press(self, label: str) -> None:
        notice, reply = next((n, r) for n in self.notices.items for r in n.replies if r.label == label)
        self.notices.reply(notice, reply)

    def fork(self, backup: BackupInfo) -> None:
        """Prepare a fork from a backup, as the window of forks does."""
        source = ForkSource(backup.run_dir, "zog", backup.step, backup.path, backup)
        self.starter.prepare_fork(source, fork_config(source, "second"))

    def look(self) -> None:
        """Look as at the start of the window, and wait for the result."""
        offer_run, looked = self.offers._offer_run, list[bool]()

        def offered(of_queue: str, record: RunRecord | None) -> None:
            offer_run(of_queue, record)
            looked.append(True)

        self.offers._offer_run = offered  # type: ignore[method-assign]
        self.offers.look((self.workspace,))
        self.wait_until(lambda: looked)
        self.offers._offer_run = offer_run  # type: ignore[method-assign]

    def crashed_run(self, name: str = "2026-03-01_12-00-00", *, epochs: int = 3) -> BackupInfo:
        run_dir = write_run(self.workspace, name, [(0, started(self.workspace)), (5, step(33))])
        config, _ = set_path(self.form.config, "training.epochs", epochs)

        def files(folder: Path) -> None:
            save_file(config, folder / "config.json")

        return write_backup(run_dir, step=20, epoch=1, now=datetime(2026, 3, 1, 12, 4), write=files)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_run_that_ended_unexpectedly_is_offered_with_step_and_time(desk: Desk) -> None:
    backup = desk.crashed_run(epochs=77)
    desk.look()
    desk.wait_until(lambda: desk.keys() == [CRASHED_RUN])
    [notice] = desk.notices.items
    assert notice.text == (
        "The run of 01 March, 12:00 ended unexpectedly at step 33 of 40. Its newest backup is step 20 (12:04)."
    )
    desk.press("Show run")
    assert desk.shown == [backup.run_dir]
    assert desk.keys() == [CRASHED_RUN]
    desk.press("Resume at step 20")
    desk.wait_until(lambda: desk.engine.requests)
    [request] = desk.engine.requests
    assert (request.kind, request.resume_from, request.config.training.epochs) == ("resume", backup.path, 77)
    assert desk.keys() == []
    assert desk.form.undo()
    assert desk.form.config.training.epochs != 77


def test_a_dismissed_run_is_not_offered_again_but_a_newer_one_is(desk: Desk) -> None:
    desk.crashed_run()
    desk.look()
    desk.wait_until(lambda: desk.keys() == [CRASHED_RUN])
    desk.notices.dismiss(desk.notices.items[0])
    desk.look()
    assert desk.keys() == []
    desk.crashed_run("2026-03-02_12-00-00")
    desk.look()
    desk.wait_until(lambda: desk.keys() == [CRASHED_RUN])


def test_nothing_is_offered_after_a_run_that_ended(desk: Desk) -> None:
    desk.crashed_run()
    write_run(desk.workspace, "2026-03-02_12-00-00", [(0, RunFinished("finished", 3, "Finished."))])
    desk.look()
    assert desk.keys() == []


def test_an_interrupted_queue_is_offered_instead_of_its_run(desk: Desk) -> None:
    backup = desk.crashed_run()
    for name in ("zog", "next"):
        desk.file.change(lambda queue, name=name: queue.add(name, desk.form.config))  # type: ignore[misc]
    desk.file.change(lambda queue: queue.begin(1).with_run_dir(1, str(backup.run_dir)))
    desk.look()
    assert desk.keys() == [QUEUE]
    assert "while it trained zog" in desk.notices.items[0].text
    assert desk.notices.items[0].text.endswith("then 1 more.")
    desk.press("Show queue")
    assert desk.shown == ["queue"]
    desk.press("Continue the queue")
    desk.wait_until(lambda: desk.engine.children)
    assert (desk.engine.children[0].kind, desk.engine.children[0].resume_from) == ("resume", backup.path)
    assert desk.engine.run is not None
    desk.engine.run.over.set()
    desk.queue.close()


def changed(path: str, value: object) -> Callable[[Desk], None]:
    return lambda desk: desk.form.edit(path, value) and None


@pytest.mark.parametrize(
    ("edit", "kind"),
    [(changed("training.epochs", 50), "fork"), (changed("training.batch_size", 7), "fork_weights")],
)
def test_a_fork_starts_with_the_state_where_the_settings_allow_it_else_with_the_weights(
    desk: Desk, edit: Callable[[Desk], None], kind: str
) -> None:
    backup = desk.crashed_run()
    desk.fork(backup)
    desk.wait_until(lambda: desk.keys() == [FORK])
    text = "A fork of zog, from step 20 (backup/step-00000020). Change what is to be different, then press Start."
    assert desk.notices.items[0].text == text
    assert desk.form.config.training.epochs == 3
    edit(desk)
    desk.asked.answers["choose"] = "weights"
    desk.press("Start")
    desk.wait_until(lambda: desk.engine.requests)
    [request] = desk.engine.requests
    assert (request.kind, request.resume_from, request.config) == (kind, backup.path, desk.form.config)
    assert bool(desk.asked.asked("choose")) is (kind == "fork_weights")
    assert desk.checked_from == (backup.path if kind == "fork" else None)
    assert desk.keys() == []
    assert desk.starter.fork_from is None


def test_a_fork_with_another_adapter_is_refused_and_a_cancelled_one_is_a_plain_start(desk: Desk) -> None:
    backup = desk.crashed_run()
    desk.fork(backup)
    desk.wait_until(lambda: desk.keys() == [FORK])
    desk.form.edit("adapter.rank", 99)
    desk.press("Start")
    desk.wait_until(lambda: desk.findings.items)
    assert [f.problem.path for f in desk.findings.items] == ["adapter.rank"]
    assert not desk.engine.requests
    desk.form.edit("training.batch_size", 9)
    desk.form.edit("adapter.rank", Config().adapter.rank)
    desk.press("Start")  # the question about the weights is cancelled
    desk.wait_until(lambda: desk.asked.asked("choose"))
    assert not desk.engine.requests
    desk.notices.dismiss(desk.notices.items[0])
    assert desk.keys() == []
    desk.starter.start()
    desk.wait_until(lambda: desk.engine.requests)
    assert desk.engine.requests[0].kind == "train"


def test_a_cancelled_fork_leaves_no_trace_of_it(desk: Desk) -> None:
    backup, before = desk.crashed_run(epochs=77), desk.form.document
    for edits in (0, 1):
        desk.fork(backup)
        desk.wait_until(lambda: desk.keys() == [FORK])
        assert desk.form.source.name == "second"
        assert desk.form.config.output.destination == "models/second.safetensors"
        if edits:
            desk.form.edit("training.batch_size", 9)
        desk.notices.dismiss(desk.notices.items[0])
        assert desk.keys() == []
        if edits:  # they are not thrown away
            assert desk.form.config.training.batch_size == 9
            assert desk.form.source.name == backup.run_dir.name
        else:
            assert desk.form.document is before


def test_a_fork_while_a_run_trains_is_shown_and_waits(desk: Desk) -> None:
    """It was silent, and its notice appeared between two runs of the queue, where Start could do nothing."""
    backup = desk.crashed_run()
    desk.session.begin(RunRequest(desk.form.config))
    desk.fork(backup)
    desk.wait_until(lambda: desk.keys() == [FORK])
    [notice] = desk.notices.items
    assert RUN_IN_PROGRESS in notice.text
    assert not notice.replies
    desk.session._stage = "checking"
    assert desk.starter.why_not == CHECKING
    desk.session._stage = "running"
    desk.session.is_reserved = True  # the queue has the next turn
    assert desk.engine.run is not None
    desk.engine.run.end(RunFinished("finished", 9, "Done."))
    desk.wait_until(lambda: desk.session.stage == "idle")
    assert not desk.starter.can_start
    assert QUEUE_RUNS in desk.notices.items[0].text
    desk.session.is_reserved = False
    desk.session.changed()
    assert [reply.label for reply in desk.notices.items[0].replies] == ["Start"]


def test_a_run_that_begins_while_a_question_is_open_is_said(desk: Desk) -> None:
    """The dialog of a fork closed and nothing happened."""
    backup = desk.crashed_run()
    desk.fork(backup)
    desk.wait_until(lambda: desk.keys() == [FORK])
    desk.form.edit("training.batch_size", 7)

    def choose(*_question: object) -> str:
        desk.session.begin(RunRequest(desk.form.config))
        return "weights"

    desk.asked.choose = choose  # type: ignore[method-assign,assignment]
    desk.press("Start")
    desk.wait_until(lambda: desk.findings.items)
    assert [f.problem.message for f in desk.findings.items] == [RUN_IN_PROGRESS]
    assert len(desk.engine.requests) == 1
    assert desk.starter.fork_from is not None


def test_a_fork_of_a_run_that_has_trained_all_epochs_asks_for_more_of_them(desk: Desk) -> None:
    desk.fork(desk.crashed_run(epochs=1))
    assert "set more of them" in desk.notices.items[0].text
    desk.form.edit("training.epochs", 2)
    assert "Change what is to be different" in desk.notices.items[0].text


def test_a_fork_starts_from_a_backup_or_from_a_saved_model(desk: Desk) -> None:
    """From the model it is a run of its own, whose adapter starts from the file."""
    backup = desk.crashed_run(epochs=7)
    run_dir = backup.run_dir
    save_file(desk.form.config, run_dir / "config.json")
    model = run_dir / "save" / "lora-step-10.safetensors"
    model.parent.mkdir()
    save_tensors({"a": torch.zeros(1)}, model)
    choices = fork_choices(read_record(run_dir))
    assert [(s.label, s.place, s.backup) for s in choices.sources] == [
        ("step 20", "backup/step-00000020", backup),
        ("step 10", "save/lora-step-10.safetensors", None),
    ]
    assert choices.name == "lora-2"
    config = fork_config(choices.sources[1], "third")
    assert config.output.destination == "models/third.safetensors"
    desk.starter.prepare_fork(choices.sources[1], config)
    assert "from step 10 (save/lora-step-10.safetensors)" in desk.notices.items[0].text
    desk.press("Start")
    desk.wait_until(lambda: desk.engine.requests)
    [request] = desk.engine.requests
    assert (request.kind, request.resume_from) == ("train", None)
    assert request.config.adapter.start_from == str(model)
    assert desk.keys() == []


@pytest.mark.parametrize(
    ("destination", "proposed", "named_x"),
    [
        ("models/zog.safetensors", "zog-3", "models/x.safetensors"),
        ("models/zog-2.safetensors", "zog-3", "models/x.safetensors"),
        ("models/zog-768.safetensors", "zog-769", "models/x.safetensors"),
        ("models/dog-768.safetensors", "dog-768-2", "models/x.safetensors"),
        ("models/tuned/", "tuned-2", "models/x"),
        ("C:\\models\\v1.5 tuned", "v1.5 tuned-2", "C:\\models\\x"),
    ],
)
def test_the_name_of_a_fork_is_that_of_its_result(
    monkeypatch: pytest.MonkeyPatch, destination: str, proposed: str, named_x: str
) -> None:
    names = ("zog.safetensors", "zog-2.safetensors")
    monkeypatch.setattr("trainer.run_folder.destination.is_taken", lambda path: path.name in names)
    config = Config.model_validate({"output": {"destination": destination}})
    assert proposed_name(config) == proposed
    assert with_name(config, "x").output.destination == named_x
    assert with_name(config, " ").output.destination != destination


def test_an_edited_item_of_the_queue_is_saved_or_discarded(desk: Desk) -> None:
    desk.file.change(lambda queue: queue.add("zog", Config()))
    desk.queue.refresh()
    desk.wait_until(lambda: desk.queue.queue.items)
    desk.queue.edit(1)
    assert desk.keys() == [EDITED]
    assert "zog, item 1" in desk.notices.items[0].text
    desk.notices.dismiss(desk.notices.items[0])
    assert desk.queue.editing is None
    desk.queue.edit(1)
    desk.form.edit("training.epochs", 42)
    desk.press("Save to the queue")
    desk.wait_until(lambda: json.loads(desk.file.path.read_text())["items"][0]["settings"]["training"]["epochs"] == 42)
    assert desk.keys() == []
