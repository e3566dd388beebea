"""Comparing checkpoints in the window: the grid, the blind vote, and the choice of one as the result."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from tests.ui.conftest import Window
from tests.ui.fake_engine import step
from tests.ui.real_input import keys
from tests.ui.test_fitting import AtOnce
from tests.ui.test_run_end import write_lora
from tests.unit.test_run_records import started, validated, write_run
from trainer.event_lines import to_line
from trainer.events import ModelSaved, RunFinished
from trainer.job_events import JobFinished, JobProgress
from trainer.jobs.checkpoint_files import checkpoints_of, use_checkpoint
from trainer.run_folder.checkpoints import Cell, Checkpoint, Column, Comparison, images_dir, write_comparison
from trainer.run_folder.records import read_record
from trainer.run_folder.result import model_files, record_result, results_of
from ui.features.checkpoints.model import CheckpointSession, CheckpointTable, Row, _names_of
from ui.features.checkpoints.vote import BlindVote
from ui.features.checkpoints.window import CheckpointsWindow
from ui.features.runs.model import fact_lines
from ui.forms.model import Source
from ui.widgets.image_viewer import ImageViewer

NAME = "2026-03-01_12-00-00"
STEPS = (20, 40, 60)
COLUMNS = (Column("a zog on a table", 7), Column("a zog in the snow", 7))


def write_checkpoints(workspace: Path, name: str = NAME, *, destination: Path) -> Path:
    """Write a run of 60 steps with three saves, a validation after each, and its result; return its folder."""
    run_dir = workspace / "runs" / name
    events = [
        started(run_dir),
        *(validated(at, loss, 0.3, 40) for at, loss in zip(STEPS, (0.5, 0.3, 0.4), strict=True)),
        step(60),
        ModelSaved(60, str(destination), "kohya", is_final=True),
        RunFinished("finished", 60, "Finished after 60 steps.", str(destination)),
    ]
    write_run(workspace, name, list(enumerate(events)))
    for number, at in enumerate(STEPS):  # each with other weights
        save = write_lora(run_dir / f"save/zog-step-{at:08d}.safetensors")
        save.write_bytes(save.read_bytes()[:-1] + bytes([number]))
    destination.parent.mkdir(parents=True, exist_ok=True)
    destination.write_bytes(save.read_bytes())
    config, _ = set_path(Config(), "output.destination", str(destination))
    config, _ = set_path(config, "general.workspace_dir", str(workspace))
    save_file(config, run_dir / "config.json")
    record_result(run_dir, destination, model_files(destination), step=60)
    return run_dir


def write_images(run_dir: Path, *, strengths: tuple[float, ...] = (1.0,)) -> Comparison:
    """Write what a comparison of the run leaves: an image of each checkpoint, prompt and strength, with a score."""
    checkpoints = tuple(checkpoints_of(run_dir))
    cells, scores = [], {}
    for number, checkpoint in enumerate(checkpoints):
        for column in range(len(COLUMNS)):
            for strength in strengths:
                image = f"{number}-{column}-{strength:g}.png"
                path = images_dir(run_dir) / image
                path.parent.mkdir(parents=True, exist_ok=True)
                shade = int(60 + 60 * number * strength)
                Image.new("RGB", (64, 64), (shade, 90, 120 * column)).save(path)
                cells.append(Cell(checkpoint.name, column, strength, image))
                scores[image] = {"clip_score": 0.2 + 0.01 * number}
    comparison = Comparison(run_dir, checkpoints, COLUMNS, strengths, tuple(cells), scores)
    write_comparison(comparison)
    return comparison


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "models/zog.safetensors"


@pytest.fixture
def run_dir(tmp_path: Path, destination: Path) -> Path:
    return write_checkpoints(tmp_path / "workspace", destination=destination)


def test_the_table_has_the_best_of_each_figure_and_runs_side_by_side(run_dir: Path, tmp_path: Path) -> None:
    one = write_images(run_dir, strengths=(0.5, 1.0))
    table = CheckpointTable((one,))
    assert [row.label for row in table.rows] == ["Step 20", "Step 40", "Step 60"]
    assert (table.columns, table.strengths, table.num_images) == (COLUMNS, (0.5, 1.0), 12)
    assert list(table.figures(1.0).values()) == [
        [("Validation 0.5000", False), ("CLIP score 0.2", False)],
        [("Validation 0.3000", True), ("CLIP score 0.21", False)],
        [("Validation 0.4000", False), ("CLIP score 0.22", True)],
    ]
    assert table.image(table.rows[1], COLUMNS[1], 0.5) == images_dir(run_dir) / "1-1-0.5.png"
    other = write_images(write_checkpoints(tmp_path / "workspace", "other", destination=tmp_path / "o.safetensors"))
    other = replace(other, columns=COLUMNS[::-1])
    both = CheckpointTable((one, other))
    assert [row.label for row in both.rows[:2]] == [f"Step 20, {NAME}", "Step 20, other"]
    assert CheckpointTable((one, other), {run_dir: "zog at 1e-4"}).rows[0].label == "Step 20, zog at 1e-4"
    assert both.columns == COLUMNS
    assert both.image(both.rows[1], COLUMNS[0], 1.0) == images_dir(other.run_dir) / "0-1-1.png"
    assert both.image(both.rows[1], COLUMNS[0], 0.5) is None


def test_runs_have_the_names_of_the_history(run_dir: Path, tmp_path: Path, destination: Path) -> None:
    """They had those of their folders."""
    other = write_checkpoints(tmp_path / "workspace", "other", destination=tmp_path / "o.safetensors")
    assert list(_names_of((run_dir, other)).values()) == ["zog", "o"]
    same = write_checkpoints(tmp_path / "workspace", "2026-03-02_12-00-00", destination=destination)
    names = list(_names_of((run_dir, same)).values())
    assert all(name.startswith("zog (2026-") for name in names)
    assert len(set(names)) == 2


def test_a_vote_is_blind_and_counts_by_checkpoint(run_dir: Path) -> None:
    table = CheckpointTable((write_images(run_dir),))
    orders = set()
    for seed in range(6):
        vote = BlindVote(table, table.rows, 1.0, seed=seed)
        orders.add(tuple(r.order for r in vote.rounds))
        assert BlindVote(table, table.rows, 1.0, seed=seed).rounds == vote.rounds
        while (asked := vote.round) is not None:
            vote.pick([image.name[0] for image in asked.images].index("1"))
        assert vote.winner == table.rows[1]
        assert list(vote.votes.values()) == [2, 0, 0]
    assert len(orders) > 1
    vote.undo()
    vote.undo()
    vote.tie()
    assert vote.tally == "2 of 2: 0 votes, 1 tie"
    vote.skip()
    assert vote.round is None
    assert vote.winner is None
    vote.pick(0)  # nothing is asked any more
    assert vote.votes == dict.fromkeys(table.rows, 0)


def open_on(window: Window, *run_dirs: Path) -> CheckpointsWindow:
    opened: Any = window.app.context.links.compare_checkpoints(run_dirs)
    window.wait_until(lambda: "Reading" not in opened.session.message, "the runs")
    window.settle()
    assert isinstance(opened, CheckpointsWindow)
    return opened


def drawn(opened: CheckpointsWindow) -> list[str]:
    canvas = opened.grid_view.canvas
    return [canvas.itemcget(item, "text") for item in canvas.find_withtag("figure")]


def click_on_row(window: Window, opened: CheckpointsWindow, row: int) -> None:
    grid = opened.grid_view
    layout = grid.layout()
    y = layout.corner(row * layout.num_columns)[1] - grid.top + 20
    grid.canvas.event_generate("<Button-1>", x=60, y=y)
    window.settle()


def test_the_winner_of_a_blind_vote_becomes_the_result(window: Window, run_dir: Path, destination: Path) -> None:
    write_images(run_dir, strengths=(0.5, 1.0))
    before = destination.read_bytes()
    opened = open_on(window, run_dir)
    assert opened.strength.get() == "1"
    assert "Step 40" in drawn(opened)
    assert "Validation 0.3000 · best" in drawn(opened)
    for row in (0, 1):
        click_on_row(window, opened, row)
    assert [row.label for row in opened.chosen] == ["Step 20", "Step 40"]
    vote = opened.vote(seed=3)
    assert vote is not None
    for _ in vote.vote.rounds:
        window.wait_until(lambda: vote.board.is_loaded, "the images")
        assert vote.vote.round is not None
        vote.focus_force()
        keys(window, ["Left", "Right"][vote.vote.round.order.index(1)])
    assert vote.is_revealed
    assert vote.prompt.cget("text") == "Step 40 has the most votes."
    assert vote.result.cget("text") == "Step 40: 2 votes\nStep 20: 0 votes"
    window.asked.answers["choose"] = "use"
    vote.use()
    window.wait_until(lambda: "is now" in opened.session.message, "the copy")
    window.settle()
    assert destination.read_bytes() == (run_dir / "save/zog-step-00000040.safetensors").read_bytes() != before
    assert (run_dir / "save/zog-last.safetensors").read_bytes() == before
    assert [(r.step, r.model_step) for r in results_of(run_dir)] == [(60, 40)]
    assert "Result: step 40, chosen afterwards" in fact_lines(read_record(run_dir))
    assert opened.status.cget("text").startswith("Step 40 is now ")
    opened.close()


class FakeChild(io.StringIO):
    """A child process that answers a request with the images of a comparison."""

    def __init__(self, seen: list[dict[str, Any]], write: Callable[[], object]) -> None:
        super().__init__()
        self.stdin = self
        self.stdout = [to_line(JobProgress("sampling", 1, 6)), to_line(JobFinished("Compared 3 checkpoints of 1 run."))]
        self._seen, self._write = seen, write

    def write(self, text: str) -> int:
        self._seen.append(json.loads(text))
        self._write()
        return len(text)

    def wait(self, timeout: float | None = None) -> int:
        return 0


def test_the_window_samples_and_shows_the_images(window: Window, run_dir: Path) -> None:
    seen: list[dict[str, Any]] = []
    is_free = [False]
    session = CheckpointSession(
        (run_dir,),
        window.app.context.pump.background,
        may_start=lambda: is_free[0],
        spawn=lambda _arguments, _errors: FakeChild(seen, lambda: write_images(run_dir)),  # type: ignore[arg-type, return-value]
    )
    opened = CheckpointsWindow(window.app.context, (run_dir,), session)
    window.wait_until(lambda: "3 checkpoints" in session.message, "the runs")
    assert "no sample prompts" in session.message
    assert opened.card.winfo_manager()
    opened.prompts.set("a zog on a table\n\na zog in the snow\n")
    opened.form.set("strengths", "much")
    opened.buttons["start"].invoke()
    assert "'much' is not a number" in session.message
    opened.form.set("strengths", "1")
    opened.buttons["start"].invoke()
    assert session.message.startswith("A run is training.")
    is_free[0] = True
    opened.buttons["start"].invoke()
    window.wait_until(lambda: session.table.num_images == 6, "the images")
    window.settle()
    [request] = seen
    assert request["job"] == "checkpoints"
    assert request["settings"]["prompts"] == ["a zog on a table", "a zog in the snow"]
    assert request["settings"]["runs"] == [str(run_dir)]
    assert not opened.card.winfo_manager()  # the images need the room
    assert "3 checkpoints of 1 run" in opened.status.cget("text")
    layout = opened.grid_view.layout()
    x, y = layout.corner(1)
    opened.grid_view.canvas.event_generate("<Button-1>", x=x + 5, y=y + 5)
    window.settle()
    viewer = next(w for w in window.app.root.winfo_children() if isinstance(w, ImageViewer))
    assert viewer.caption.cget("text") == "Step 20: a zog in the snow"
    assert len(viewer.tiles) == 3
    viewer.close()
    opened.close()


def test_keys_choose_a_checkpoint_and_the_pages_lead_here(window: Window, run_dir: Path) -> None:
    write_images(run_dir)
    config, _ = set_path(Config(), "general.workspace_dir", str(run_dir.parent.parent))
    window.app.form.load(config, Source("zog"))
    page: Any = window.open_page("runs")
    window.wait_until(lambda: page.listed_runs, "the runs")
    window.settle()
    page.details.compare_button.invoke()
    opened = next(w for w in window.app.root.winfo_children() if isinstance(w, CheckpointsWindow))
    window.wait_until(lambda: opened.session.table.num_images, "the images")
    window.settle()
    opened.grid_view.canvas.focus_force()
    keys(window, "Down", "space")
    assert [row.label for row in opened.chosen] == ["Step 40"]
    assert opened.buttons["use"].cget("state") == "normal"
    assert opened.buttons["vote"].cget("state") == "disabled"
    keys(window, "space")
    assert not opened.chosen
    opened.close()


def test_a_later_choice_replaces_the_result_again_and_a_foreign_file_stays(run_dir: Path, destination: Path) -> None:
    first, second, third = checkpoints_of(run_dir)
    assert use_checkpoint(run_dir, first).destination == destination
    again = use_checkpoint(run_dir, second)
    assert again.destination == destination
    assert again.kept is not None
    assert again.kept.read_bytes() == first.source.read_bytes()
    destination.write_bytes(b"of another program")
    elsewhere = use_checkpoint(run_dir, third)
    assert elsewhere.destination == destination.with_name("zog-2.safetensors")
    assert elsewhere.kept is None
    assert destination.read_bytes() == b"of another program"
    assert use_checkpoint(run_dir, second).destination == elsewhere.destination
    first.source.unlink()
    with pytest.raises(DarkroomError, match="is gone"):
        use_checkpoint(run_dir, first)


def test_a_backup_of_a_whole_model_is_exported_before_it_is_used(run_dir: Path, destination: Path) -> None:
    requests: list[dict[str, Any]] = []
    save = run_dir / "save/model-step-00000040.safetensors"
    background = AtOnce()
    session = CheckpointSession(
        (run_dir,),
        background,  # type: ignore[arg-type]
        may_start=lambda: True,
        spawn=lambda _arguments, _errors: FakeChild(requests, lambda: save.write_bytes(b"exported")),  # type: ignore[arg-type, return-value]
    )
    backup = run_dir / "backup/step-00000040"
    session.use(Row(run_dir, Checkpoint("step-00000040", 40, ("backup",), "", str(backup), is_adapter=False)))
    background.finish()
    while session.runner.state.is_active:
        session.runner.drain(0.0)
    background.finish()
    assert [request["settings"]["out"] for request in requests] == [str(save)]
    assert destination.read_bytes() == b"exported"
    assert session.message.startswith("Step 40 is now ")
