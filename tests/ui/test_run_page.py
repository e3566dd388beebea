"""The Run page with real events: curves, log, samples, notices and pauses, in one window."""

from __future__ import annotations

import threading
import tkinter as tk
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.config.schema import Config
from tests.ui.conftest import Window
from tests.ui.fake_child import Spawner
from tests.ui.fake_engine import FakeRun, started, step
from tests.ui.test_run_notes import ended
from tests.ui.test_run_window import end, press_start
from trainer.commands import ReportNow, SaveNow
from trainer.event_lines import to_line
from trainer.events import ModelSaved, PhaseChanged, RunFinished, SampleReady, ValidationFinished, WarningRaised
from trainer.job_events import JobProgress, JobStopped
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import request_in
from trainer.machine_events import ImagesReported, MemoryMeasured
from trainer.run_folder.backup import write_backup
from ui.app.catalogue import page_named
from ui.features.config_views.differences import RUN, Differences
from ui.features.run import step_model
from ui.features.run.facts import describe_edits, verdict_line
from ui.features.run.notices import UsedModel, best_offer
from ui.features.run.page import RunPage
from ui.features.run.samples import STARS_FILE, name_of, read_stars, write_stars
from ui.features.run.step_model import NO_MODEL
from ui.forms.changes import changes
from ui.loop.interaction import BEFORE_START
from ui.loop.run_state import RunState

NUM_STEPS = 60


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The folder of the run, with samples and saves, beside that of an earlier run."""
    folder = tmp_path / "workspace" / "runs" / "2026-01-02_10-00-00"
    (folder / "save").mkdir(parents=True)
    (folder / "save" / "lora-best.safetensors").write_bytes(b"best")
    earlier = folder.with_name("2026-01-01_10-00-00")
    earlier.mkdir()
    (earlier / "events.jsonl").write_text("\n".join(to_line(step(n)) for n in range(1, 30)), encoding="utf-8")
    return folder


def sample(run_dir: Path, at_step: int, index: int) -> SampleReady:
    path = run_dir / "samples" / f"{index}" / f"step-{at_step}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48), (4 * at_step, 200 * index, 0)).save(path)
    return SampleReady(at_step, index, f"prompt {index}", str(path))


def play(window: Window, run_dir: Path) -> FakeRun:
    """Start a run of 60 steps with validations, samples, a warning and a best model."""
    run = press_start(window)
    run.emit(started(str(run_dir)), PhaseChanged("training"), *(step(n) for n in range(1, NUM_STEPS + 1)))
    for n in (20, 40):
        run.emit(ValidationFinished(n, n / 100, best_loss=0.2, best_step=20))
        run.emit(*(sample(run_dir, n, i) for i in range(2)))
    run.emit(
        ModelSaved(20, str(run_dir / "save" / "lora-best.safetensors"), "kohya", False, best_by="validation"),
        WarningRaised("An image is broken."),
        MemoryMeasured(3_000_000_000, 4_000_000_000, 8_000_000_000),
    )
    page: Any = window.app.shell.pages["run"]
    window.wait_until(lambda: "Memory: 3.0 GB" in page.facts.cget("text"), "the memory")
    window.settle()
    return run


def check_curves(window: Window, page: Any) -> None:
    """Hover, zoom by wheel and drag, choose curves, log scale, and overlay an earlier run."""
    chart = page.chart
    assert page.curves.verdict.cget("text") == verdict_line(page.curves._state) != ""
    chart.event_generate("<Motion>", x=round(chart.x(30)), y=80)
    texts = [chart.itemcget(i, "text") for i in chart.find_withtag("pointer") if chart.type(i) == "text"]
    assert texts[:4] == ["Step 30", "curve", "loss", "smoothed"]
    assert page.curves.zoom_button.cget("state") == "disabled"
    chart.event_generate("<Button-4>", x=round(chart.x(30)), y=80)
    low, high = chart.zoom.steps
    assert 1 < low < 30 < high < 60
    assert abs(chart.step_at(chart.x(30)) - 30) < 1e-6
    start, stop = round(chart.x(20)), round(chart.x(40))
    chart.event_generate("<Button-1>", x=start, y=80)
    chart.event_generate("<B1-Motion>", x=stop, y=90)
    assert chart.find_withtag("pointer")
    chart.event_generate("<ButtonRelease-1>", x=stop, y=90)
    low, high = chart.zoom.steps
    assert (round(low), round(high)) == (20, 40)
    start, stop = round(chart.x(20)), round(chart.x(40))
    chart.event_generate("<Button-1>", x=stop, y=80, state=1)
    chart.event_generate("<B1-Motion>", x=start, y=80, state=0x101)
    chart.event_generate("<ButtonRelease-1>", x=start, y=80, state=0x101)
    assert (round(chart.zoom.steps[0]), round(chart.zoom.steps[1])) == (40, 60)
    page.curves.zoom_button.invoke()
    assert chart.zoom.steps is None
    page.curves.log_switch.toggle()
    assert all(pane.axis.is_log for pane in chart.panes)
    page.curves.toggle("rate")
    page.curves.toggle("loss")
    assert [line.label for line in chart.lines][:2] == ["smoothed", "validation"]
    assert len(chart.panes) == 2
    page.curves.compare(next(p for p in Path(page.curves._state.started.run_dir).parent.iterdir() if "01-01" in p.name))
    window.wait_until(lambda: page.curves.past, "the earlier run")
    assert chart.lines[-1].label == "2026-01-01_10-00-00"
    assert len(chart.lines[-1].series) == 29


def check_image_report(window: Window, page: Any, run: FakeRun, run_dir: Path) -> None:
    """Ask for a report on the images; its notice opens the page and the concept, and can be closed."""
    window.app.context.actions.run("report_images")
    assert run.desk.take(ReportNow)
    report = run_dir / "report" / "images.html"
    run.emit(ImagesReported(60, 20, "1 of 20 images stands out: dog.png.", str(report), {"/dog.png": 2.5}))
    notice = page.notices.images
    window.wait_until(notice.winfo_ismapped, "the report")
    assert notice.text.cget("text") == "1 of 20 images stands out: dog.png."
    notice.buttons["Open report"].invoke()
    assert window.asked.calls[-1] == ("open_path", (report,))
    notice.buttons["Sort by loss"].invoke()
    assert window.app.context.navigation.page == "concepts"
    name, (failure,) = window.asked.calls[-1]
    assert (name, failure.message) == ("show_failure", "No concept of the config contains /dog.png.")
    window.app.context.navigation.open("run")
    notice.buttons["Close"].invoke()
    assert not notice.winfo_manager()
    run.emit(step(NUM_STEPS))
    window.settle()
    assert not notice.winfo_manager(), "it does not come back"


def check_log(window: Window, page: Any) -> None:
    """Filter by words and level, and copy."""
    page.log.words.set("image")
    assert page.log.text.get("1.0", "end-1c").endswith("An image is broken.")
    assert page.log.text.get("1.0", "end-1c").count("\n") == 1  # beside the first line, which counts the images
    page.log.level.set("warning")
    page.log.copy_button.invoke()
    copied = window.app.root.clipboard_get()
    assert copied.endswith("\tAn image is broken.")
    assert "\n" not in copied
    page.log.words.set("")
    page.log.level.set("all")
    assert "Validation loss" in page.log.text.get("1.0", "end-1c")


def check_samples(window: Window, page: Any, run: FakeRun, run_dir: Path) -> None:
    """Star in the grid; enlarge, step through, compare by the slider, and save the model of a step."""
    grid = page.samples
    window.wait_until(lambda: len(grid.photos.loaded) == 4, "the images")
    x, y = grid.image_corner((1, 0))
    for sequence in ("<Button-1>", "<ButtonRelease-1>"):
        grid.canvas.event_generate(sequence, x=x + grid.layout().cell_width - 5, y=y + 5)
    window.wait_until(lambda: read_stars(run_dir) == {"samples/1/step-20.png"}, "the star")
    assert (run_dir / STARS_FILE).is_file()
    window.settle()
    assert [grid.canvas.itemcget(i, "text") for i in grid.canvas.find_withtag("star")] == ["★"]
    for sequence in ("<Button-1>", "<ButtonRelease-1>"):
        grid.canvas.event_generate(sequence, x=x + 20, y=y + 60)
    viewer = grid.viewer
    window.wait_until(lambda: viewer.images, "the large image")
    assert viewer.star_button.cget("text") == "★ Starred"
    check_viewer(window, viewer)
    run.emit(sample(run_dir, 60, 0))  # live, while the viewer is open
    window.wait_until(lambda: viewer.table.steps == (20, 40, 60), "the newest sample")
    window.asked.answers["ask_save_file"] = run_dir / "chosen.safetensors"
    viewer.show((0, 0))
    viewer.save_button.invoke()
    window.wait_until(lambda: (run_dir / "chosen.safetensors").exists(), "the copied save")
    window.asked.answers["choose"] = "now"
    viewer.show((0, 1))
    viewer.save_button.invoke()
    window.wait_until(lambda: run.desk.take(SaveNow), "the save of the current step")
    viewer.close()


def check_viewer(window: Window, viewer: Any) -> None:
    viewer.event_generate("<Right>")
    assert viewer.place == (1, 1)
    viewer.event_generate("<Up>")
    assert viewer.place == (0, 1)
    assert viewer.caption.cget("text").startswith("Step 40 (2 of 2)")
    viewer.event_generate("c")
    window.wait_until(lambda: len(viewer.images) == 2, "both images")
    window.settle()
    width, left = viewer.images[0].width, viewer.image_left
    assert width % 64 == 0  # enlarged by whole pixels
    for share in (0.25, 0.75):
        viewer.canvas.event_generate("<Button-1>", x=round(left + share * width), y=200)
        viewer.canvas.event_generate("<B1-Motion>", x=round(left + share * width), y=200)
        window.settle()
        edge = viewer.canvas.coords(viewer.canvas.find_withtag("line")[0])[0]
        assert abs(edge - left - share * width) <= 1
    texts = [viewer.canvas.itemcget(i, "text").strip() for i in viewer.canvas.find_withtag("step")]
    assert texts == ["step 20", "step 40"]
    viewer.event_generate("1")
    window.wait_until(lambda: viewer.images[0].size == (64, 48), "the original size")
    viewer.event_generate("c")
    window.wait_until(lambda: len(viewer.images) == 1, "one image")


def check_low_window(window: Window, page: Any) -> None:
    """In a low window the log is a tab beside the curves; the newest sample stays in view."""
    window.app.root.geometry("1024x600")
    window.wait_until(lambda: page.curves_card.is_offered("Log"), "the tab of the log")
    window.settle()
    assert not page.log_card.winfo_ismapped()
    assert page.curves_card.shown == "Curves"
    page.curves_card.choose("Log")
    window.settle()
    assert page.log.winfo_ismapped()
    right = page.samples.image_corner((0, 2))[0] + page.samples.layout().cell_width
    assert right <= page.samples.canvas.winfo_width() + 8
    window.app.root.minsize(1, 1)
    window.app.root.geometry("1024x440")  # as at a scale of 150 % on a small screen: no sample was in view
    window.wait_until(lambda: page.curves_card.is_offered("Samples"), "the tab of the samples")
    page.curves_card.choose("Samples")
    window.settle()
    assert page.samples.winfo_ismapped()
    assert page.samples.winfo_height() > 60
    page.curves_card.choose("This run")
    window.settle()
    assert page.facts.winfo_ismapped()
    assert page.curves_card.winfo_width() == page.notices.winfo_width(), "the curves have the whole width"
    page.curves_card.choose("Curves")
    for height in (440, 380, 330, 280):
        window.app.root.geometry(f"1024x{height}")
        window.settle()
        assert not page.chart.winfo_ismapped() or page.chart.winfo_height() >= 60, height
    assert not page.chart.winfo_ismapped(), "the verdict lay over its labels"
    assert page.curves.verdict.winfo_ismapped()
    window.app.root.geometry("1100x740")
    window.wait_until(lambda: not page.curves_card.is_offered("Log"), "the card of the log")
    assert not page.curves_card.is_offered("Samples")
    assert not page.curves_card.is_offered("This run")
    window.settle()
    assert page.facts.winfo_rootx() >= page.facts_card.winfo_rootx()
    assert page.log_card.winfo_ismapped()
    assert page.log.winfo_ismapped()
    assert page.samples.winfo_ismapped()
    assert page.samples.winfo_rootx() >= page.images_card.winfo_rootx()


def test_the_run_page_live(ready: Window, run_dir: Path) -> None:
    run = play(ready, run_dir)
    page: Any = ready.app.shell.pages["run"]
    check_curves(ready, page)
    check_log(ready, page)
    check_samples(ready, page, run, run_dir)
    check_low_window(ready, page)

    ready.app.form.edit_text("training.epochs", "33")
    ready.wait_until(page.notices.edited.winfo_ismapped, "the edited setting")
    running = ready.app.context.session.config
    assert running is not None
    edited = describe_edits(changes(ready.app.form.config, running))
    assert "Epochs" in edited
    assert page.notices.edited.text.cget("text") == edited
    bar = ready.app.shell.bottom_bar
    ready.wait_until(lambda: bar.detail.cget("text") == "1 change for the next run", "the bar")
    page.notices.edited.buttons["Show"].invoke()
    window = next(w for w in ready.app.root.winfo_children() if isinstance(w, Differences))
    assert window.reference.get() == RUN
    assert [change.path for change in window.changes] == ["training.epochs"]
    window.close()

    check_image_report(ready, page, run, run_dir)
    bar.make_pause_menu().invoke(1)
    ready.settle()
    assert run.desk._frees_memory
    assert bar.second.cget("text") == "Continue"
    assert bar._buttons.winfo_children() == [bar.second, bar.more, bar.start], "Tab goes as they look"
    bar.second.invoke()

    result = Path(ready.app.form.config.output.destination)
    result.write_bytes(b"last")
    end(ready, run, ModelSaved(60, str(result), "kohya", True), RunFinished("finished", 60, "Done."))
    assert not page.notices.edited.winfo_manager()
    offer = best_offer(ready.app.context.session.state, running)
    assert offer is not None
    assert page.notices.best.text.cget("text") == offer.text
    session, result_steps = ready.app.context.session, list[int | None]()
    unsubscribe = session.changed.subscribe(lambda: result_steps.append(page.notices.used_step(session.state)))
    page.notices.best.buttons["Use step 20"].invoke()
    ready.wait_until(lambda: "Undo" in page.notices.best.buttons, "the best as the result")
    assert result.read_bytes() == b"best"
    assert result_steps[-1] == 20, "the card of the end showed the samples of the other model"
    page.notices.best.buttons["Undo"].invoke()
    ready.wait_until(lambda: "Keep step 60" in page.notices.best.buttons, "the last as the result")
    assert result_steps[-1] is None
    unsubscribe()
    assert result.read_bytes() == b"last"
    page.notices.best.buttons["Keep step 60"].invoke()
    ready.settle()
    assert not page.notices.best.winfo_manager()

    run = press_start(ready)  # with the edited setting, which is now part of the run
    run.emit(started(str(run_dir)), PhaseChanged("training"))
    ready.wait_until(lambda: bar.phase.cget("text") == "Training", "the second run")
    ready.settle()
    assert bar.detail.cget("text") == ""
    assert not page.notices.edited.winfo_manager()
    end(ready, run)


def test_stars_and_backups_of_a_run_are_there_again(
    ready: Window, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = Spawner()
    monkeypatch.setattr(step_model, "export_backup", partial(step_model.export_backup, spawn=spawn))
    backup = write_backup(run_dir, step=20, epoch=1, now=datetime(2026, 1, 2), write=lambda f: (f / "x").touch())
    samples = [sample(run_dir, n, 0) for n in (20, 40)]
    (run_dir / STARS_FILE).write_text('["samples/0/step-20.png"]', encoding="utf-8")
    run = press_start(ready)
    run.emit(started(str(run_dir)), PhaseChanged("training"), *samples)
    page: Any = ready.app.shell.pages["run"]
    ready.wait_until(lambda: page.samples.starred == {Path(samples[0].path)}, "the star")
    end(ready, run)
    ready.asked.answers["ask_save_file"] = run_dir / "chosen.safetensors"
    step_model.save_step_model(ready.app.context, ready.app.context.session.state, 20)
    ready.wait_until(lambda: spawn.children, "the export")
    job, settings = request_in(spawn.last.sent[0], JOBS)
    wanted = {"run_path": str(backup.path), "out": str(run_dir / "chosen.safetensors"), "overwrite": True}
    assert (job.name, settings.model_dump() | wanted) == ("export", settings.model_dump())
    notices = ready.app.context.notices
    spawn.last.report(JobProgress("loading the model", 0, 1))
    ready.wait_until(lambda: "Loading the model" in notices.items[0].text, "the progress")
    notices.dismiss(notices.items[0])  # its button is Stop
    assert '"Stop"' in spawn.last.sent[-1]
    spawn.last.report(JobStopped())
    spawn.last.end(130)
    ready.wait_until(lambda: not any(n.text.startswith("Exporting") for n in notices.items), "the end")
    ((title, start, _),) = ready.asked.asked("ask_save_file")
    assert title == "Save the model of step 20, from its backup"
    assert start.name == "lora-step-20.safetensors"
    step_model.save_step_model(
        ready.app.context, ready.app.context.session.state, 40
    )  # nothing is left of it, and the run is over
    ready.wait_until(lambda: ready.asked.asked("choose"), "the answer")
    assert ready.asked.asked("choose")[0][0] == NO_MODEL


def test_before_a_run_the_page_shows_the_last_one_beside_what_a_start_does(ready: Window, run_dir: Path) -> None:
    """It was empty after a restart, though it is for the current run or the last one."""
    events = [started(str(run_dir)), *(step(n) for n in range(1, 30)), sample(run_dir, 20, 0)]
    (run_dir / "events.jsonl").write_text("\n".join(map(to_line, events)), encoding="utf-8")
    page: Any = ready.open_page("run")
    ready.wait_until(lambda: page._drawn_state.series, "the last run")
    ready.wait_until(lambda: "the last run, 2026-01-02_10-00-00" in page.facts.cget("text"), "its name")
    assert page.facts_card.heading.cget("text") == BEFORE_START
    assert page.samples.table.steps == (20,)
    run = press_start(ready)
    ready.wait_until(lambda: page.facts_card.heading.cget("text") == "This run", "the run that begins")
    assert "the last run" not in page.facts.cget("text"), "its curves are no longer shown"
    run.emit(started(str(run_dir)), PhaseChanged("training"), step(1))
    ready.wait_until(lambda: len(page._drawn_state.curve("loss")) == 1, "the run")
    assert page.facts_card.heading.cget("text") == "This run"
    end(ready, run)


def test_the_page_may_be_laid_out_while_it_is_built(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the facts were fitted before the samples were there, which was an internal error."""
    context, parts = window.app.context, list[Iterator[None]]()
    monkeypatch.setattr(context.pump, "work_through", lambda _name, work: parts.append(work))
    top = tk.Toplevel(window.app.root)
    top.geometry("1000x600")
    page = RunPage(top, context, page_named("run"))
    page.frame.pack(fill="both", expand=True)
    for _ in parts[0]:
        top.update()
        page._fit_left()
        if hasattr(page, "facts"):
            page._fit_facts()
    assert page._samples_place is not None
    top.destroy()


def test_the_last_run_of_a_workspace_does_not_replace_that_of_a_newer_one(
    window: Window, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A slow disk was read after the workspace had been changed: the page showed a run of the one before."""
    may_read, both_are_free, met = threading.Event(), threading.Barrier(2), list[int]()

    def read(workspace: Path) -> RunState:
        if workspace.name == "slow":
            may_read.wait(120)
        return RunState(detail=workspace.name)

    monkeypatch.setattr("ui.features.run.page.read_last_state", read)
    page: Any = window.app.shell.page("run")
    for name in ("slow", "quick"):
        window.app.form.edit_text("general.workspace_dir", str(tmp_path / name))
        page.on_show()
    window.wait_until(lambda: page._last_run is not None, "the run of the second workspace")
    may_read.set()
    for _ in range(2):
        window.app.context.pump.background.run(partial(both_are_free.wait, 120), met.append)
    window.wait_until(lambda: met, "the slow disk")
    window.settle()
    assert page._last_run.detail == "quick"


def test_the_last_of_two_quick_stars_is_kept_on_a_slow_disk(
    window: Window, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one was written last: the second was gone with the next look at the run."""
    second, both_are_free, met = threading.Event(), threading.Barrier(2), list[int]()

    def write(folder: Path, names: set[str]) -> None:
        if len(names) == 1:
            second.wait(0.2)
        write_stars(folder, names)
        second.set()

    monkeypatch.setattr("ui.features.run.samples.write_stars", write)
    page: Any = window.open_page("run")
    images = [run_dir / "samples" / f"{n}.png" for n in range(2)]
    page.samples._run_dir = run_dir
    for image in images:
        page.samples.toggle_star(image)
    for _ in range(2):  # both threads are through with what was submitted before
        window.app.context.pump.background.run(partial(both_are_free.wait, 120), met.append)
    window.wait_until(lambda: len(met) == 2, "both stars")
    assert read_stars(run_dir) == {name_of(image, run_dir) for image in images}


def test_each_run_asks_whether_its_best_model_is_the_result(window: Window, tmp_path: Path) -> None:
    """After the best model of one run had been used, the end card of the next one did not wait for the answer."""
    page, session = window.open_page("run"), window.app.context.session
    notices: Any = page.notices  # type: ignore[attr-defined]
    for name in ("first", "second"):
        session.show_past(ended(tmp_path / name), Config())
        window.wait_until(lambda: notices.asks_for_result, f"the question about the {name} run")
        notices._show_used(UsedModel(notices._offer, None))
        assert not notices.asks_for_result
