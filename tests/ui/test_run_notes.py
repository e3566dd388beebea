"""The notices, facts, times and log of a run, without a window."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from modules.config.schema import Config
from modules.settings.edit import set_path
from tests.ui.fake_engine import started, step
from tests.unit.test_run_records import write_run
from trainer.events import (
    CacheProgress,
    Event,
    ModelSaved,
    PhaseChanged,
    RunFinished,
    SampleProgress,
    ValidationFinished,
)
from trainer.log_lines import LogLine
from trainer.machine_events import MemoryMeasured
from trainer.run_folder.elsewhere import Elsewhere
from trainer.timing import Timing
from ui.features.run.facts import describe_edits, machine_line, memory_lines, run_lines, time_lines, verdict_line
from ui.features.run.notices import best_offer, undo, use
from ui.forms.changes import changes
from ui.loop.folding import fold, history_before, prepend_history
from ui.loop.past_runs import read_state_so_far
from ui.loop.run_state import RunState
from ui.loop.wording import plan_lines
from ui.widgets.log import LogFilter, as_text, clock


def folded(*events: Event, state: RunState | None = None) -> RunState:
    state = state or RunState()
    for event in events:
        state = fold(state, event, 0.0)
    return state


def ended(folder: Path, *, outcome: str = "finished", best_step: int = 20) -> RunState:
    """Return the state of a run of 40 steps with its result, and its best model in its folder."""
    best, result = folder / "run" / "save" / "zog-best.safetensors", folder / "out" / "zog.safetensors"
    for path, content in ((best, b"best"), (result, b"last")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    final = [ModelSaved(40, str(result), "kohya", is_final=True)] if outcome == "finished" else []
    return folded(
        started(str(folder / "run")),
        ModelSaved(best_step, str(best), "kohya", is_final=False, best_by="validation"),
        ModelSaved(best_step, str(folder / "x"), "kohya", is_final=False),
        ValidationFinished(40, 0.5, best_loss=0.25, best_step=best_step),
        *final,
        RunFinished(outcome, 40, "Done."),  # type: ignore[arg-type]
    )


def test_the_best_model_becomes_the_result_and_back(tmp_path: Path) -> None:
    offer = best_offer(ended(tmp_path), Config())
    assert offer is not None
    assert all(part in offer.text for part in ("step 20 (0.2500)", "step 40"))
    result = tmp_path / "out" / "zog.safetensors"
    used = use(offer)
    assert result.read_bytes() == b"best"
    assert used.earlier_model == tmp_path / "run" / "save" / "zog-last.safetensors"
    assert used.earlier_model.read_bytes() == b"last"
    assert str(used.earlier_model) in used.text
    assert undo(used) == offer
    assert result.read_bytes() == b"last"
    assert offer.source.read_bytes() == b"best"
    assert use(offer).earlier_model == tmp_path / "run" / "save" / "zog-last-2.safetensors"  # nothing kept is replaced


def test_the_verdict_with_learned_weights_is_on_the_loss_without_them() -> None:
    """They bring the weighted loss from 0.1 to 1, which was called divergence."""
    begun = replace(started("/run"), method="denoise")
    events = [
        replace(step(n), loss=1 - 0.9 * 0.99**n, metrics={"unscaled_loss": (0.1 - n / 20_000) * (1 + n % 7 / 10)})
        for n in range(1, 1201)
    ]
    verdict = verdict_line(folded(begun, *events))
    assert verdict.startswith("Learning: the typical training loss fell from 0.1"), verdict
    unweighted = verdict_line(folded(begun, *(replace(event, metrics={}) for event in events)))
    assert unweighted.startswith("Diverging"), "the loss itself does rise"


def test_validations_that_are_not_finite_are_left_out_of_the_verdict() -> None:
    """It read "Flat: the last 3 validations are neither clearly lower nor clearly higher than the first, nan."."""
    begun = replace(started("/run"), method="denoise")
    measured = [ValidationFinished(10 * n, loss) for n, loss in enumerate((math.nan, 0.1, 0.05, 0.04, math.nan))]
    assert verdict_line(folded(begun, step(1), *measured)).startswith(
        "Learning: the validation loss is still falling, 0.1000 "
    )


def test_the_verdict_knows_of_a_restart_of_the_learning_rate() -> None:
    """It raises the loss for a while, which was called divergence."""
    begun = replace(started("/run"), method="denoise")
    restarted = [
        replace(step(n), loss=(0.1 if low else 0.14) * (1 + n % 7 / 10), learning_rates={"unet": 1e-4 if low else 1e-3})
        for n, low in ((n, 300 < n <= 900) for n in range(1, 1201))
    ]
    assert verdict_line(folded(begun, *restarted)).startswith("Flat")
    constant = (replace(event, learning_rates={"unet": 1e-3}) for event in restarted)
    assert verdict_line(folded(begun, *constant)).startswith("Diverging")


def test_a_missing_best_model_leaves_the_result(tmp_path: Path) -> None:
    offer = best_offer(ended(tmp_path), Config())
    assert offer is not None
    offer.source.unlink()
    try:
        use(offer)
    except OSError:
        assert offer.destination.read_bytes() == b"last"
    else:
        raise AssertionError("it was used")


def test_a_stopped_run_has_no_result_yet(tmp_path: Path) -> None:
    config, _ = set_path(Config(), "output.destination", str(tmp_path / "stopped.safetensors"))
    offer = best_offer(ended(tmp_path, outcome="stopped"), config)
    assert offer is not None
    assert offer.text.endswith("This run has no result yet.")
    assert use(offer).earlier_model is None
    assert (tmp_path / "stopped.safetensors").read_bytes() == b"best"


def test_a_model_at_the_place_of_the_result_is_said(tmp_path: Path) -> None:
    """Beside a result of an earlier run, or the model that a stop has saved, it said that there was none."""
    (tmp_path / "zog.safetensors").touch()
    config, _ = set_path(Config(), "output.destination", str(tmp_path / "zog.safetensors"))
    state = ended(tmp_path, outcome="stopped")
    assert state.finished is not None
    state = replace(state, finished=replace(state.finished, model_path="/runs/zog-step-40.safetensors"))
    offer = best_offer(state, config)
    assert offer is not None
    last, other = "/runs/zog-step-40.safetensors", tmp_path / "zog.safetensors"
    assert offer.text.endswith(f"Its last model is {last}. {other} is from another run and would be kept.")
    assert f"Last model: {last}" in run_lines(state, is_active=False)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("embedding:zog", "embedding zog"),
        ("embedding:6ba7b810-9dad-11d1-80b4-00c04fd430c8", "embedding"),
        ("text_encoder", "Text encoder"),
        ("lora", "lora"),
    ],
)
def test_what_is_trained_is_named_without_ids(name: str, label: str) -> None:
    state = folded(started(), step(3, training_parts=(name,)))
    assert f"Training: {label}" in run_lines(state, is_active=True)


def test_a_part_that_stopped_before_the_end_was_trained() -> None:
    """A run whose UNet was frozen after four steps had trained the text encoder alone, it said."""
    begun = folded(started(), step(3), step(5, training_parts=("text_encoder",)))
    assert "Training: Text encoder" in run_lines(begun, is_active=True)
    assert "Trained: UNet, Text encoder" in run_lines(begun, is_active=False)
    resumed = prepend_history(begun, folded(started(), step(7, training_parts=("text_encoder",))))
    assert "Trained: UNet, Text encoder" in run_lines(resumed, is_active=False)


def test_the_plan_names_the_result_that_a_taken_destination_leads_to() -> None:
    config = Config()
    assert f"Result: {config.output.destination}" in plan_lines(config)
    kept = "It is kept; the result will be zog-2."
    assert f"Result: {kept}" in plan_lines(config, kept)


def test_a_run_of_another_machine_has_a_place_and_a_price() -> None:
    begun, elsewhere = 1_000_000.0, Elsewhere("box", "job", "/r/job", "x", price_per_hour=2.0)
    state = RunState()
    for minutes, event in ((15, started()), (20, step(1)), (30, step(2))):
        state = fold(state, event, begun + minutes * 60)
    assert machine_line(state, elsewhere, begun).startswith("On box: about 1.00 so far, ")
    assert machine_line(state, elsewhere, begun).endswith(" at the end")
    assert machine_line(state, elsewhere, None) == "On box", "of a version that did not note when it began"
    assert machine_line(state, replace(elsewhere, price_per_hour=0.0), begun) == "On box"
    assert machine_line(folded(started()), elsewhere, 0.0) == "On box", "before the first step"
    days = 5 * 24 * 60
    for minutes, event in ((45, RunFinished("stopped", 2, "Stopped.")), (days, started()), (days + 15, step(3))):
        state = fold(replace(state, finished=None), event, begun + minutes * 60)
    assert machine_line(state, elsewhere, begun).startswith("On box: about 2.00 so far, "), "not for the days between"
    state = fold(state, RunFinished("finished", 3, "Done."), begun + (days + 45) * 60)
    assert machine_line(state, elsewhere, begun) == "On box, for about 3.00"


def test_nothing_is_offered_without_something_better(tmp_path: Path) -> None:
    state = ended(tmp_path)
    assert best_offer(ended(tmp_path, best_step=40), Config()) is None
    assert best_offer(replace(state, finished=None), Config()) is None
    assert best_offer(replace(state, validations=()), Config()) is None
    assert best_offer(replace(state, saves=()), Config()) is None
    assert best_offer(replace(state, saves=(*state.saves, ModelSaved(20, "/r", "kohya", True))), Config()) is None


def test_a_best_model_from_before_a_resume_is_offered_too(tmp_path: Path) -> None:
    state = ended(tmp_path)
    before = history_before([*state.saves[:2], step(20)], until_step=20)
    now = replace(state, saves=state.saves[2:])
    assert best_offer(now, Config()) is None
    offer = best_offer(prepend_history(before, now), Config())
    assert offer is not None
    assert offer.step == 20


def test_edited_settings_are_named() -> None:
    config, edits = Config(), ("training.epochs", "training.batch_size", "data.loader_threads", "general.seed")
    assert describe_edits(changes(config, Config())) == ""
    for path in edits:
        config, _ = set_path(config, path, 7)
    first = describe_edits(changes(config, Config())[:1])
    assert first.endswith("1 setting (Loader threads). It applies to the next run.")
    config, _ = set_path(config, "validation.num_timesteps", 9)
    words = describe_edits(changes(config, Config()))
    assert words.startswith("Changed since Start: 5 settings (Loader threads, ")
    assert words.endswith(" and 1 more). They apply to the next run.")


def test_the_time_between_attempts_counts_neither_for_the_time_left_nor_for_the_cost(tmp_path: Path) -> None:
    """A run was killed in a pause after ten seconds, and resumed ten hours later."""
    killed = [(0.0, started("/run")), *((float(n), step(n, seconds_left=0.0)) for n in range(1, 11))]
    events = [
        *killed,
        (10.0, PhaseChanged("paused")),
        (36_000.0, started("/run")),
        (36_001.0, PhaseChanged("training")),
        *((36_000.0 + n, step(n, seconds_left=0.0)) for n in range(11, 16)),
    ]
    state = RunState()
    for at, event in events:
        state = fold(state, event, at)
    assert state.run_seconds_left == 400 - 15
    assert state.timing.machine_seconds(0.0) == 10 + 15
    timing = read_state_so_far(write_run(tmp_path, "2026-03-10_12-00-00", events))[0].timing  # there they are minutes
    assert timing.first_attempt_at is not None
    assert timing.machine_seconds(timing.first_attempt_at) == 60 * (10 + 15)


def test_the_time_left_counts_what_lies_between_steps_but_no_pause() -> None:
    timing = Timing()
    assert timing.seconds_left(100) is None
    for number, at in ((1, 100.0), (2, 102.0), (3, 104.0), (4, 110.0)):  # a validation before the fourth
        timing = timing.after_step(number, at)
    assert timing.seconds_left(10) == 20.0
    timing = timing.after_phase("training", 110.0).after_phase("paused", 111.0).after_phase("paused", 150.0)
    timing = timing.after_phase("training", 211.0).after_step(5, 213.0)
    assert timing.seconds_left(10) == 13.0 / 4 * 5
    assert timing.seconds_left(5) == 0.0


def test_the_time_left_of_phase_and_run() -> None:
    state = folded(started(), PhaseChanged("caching"), CacheProgress("images", 3, 12, 9.0))
    assert time_lines(state) == ["Time left: 9 s of caching"]
    state = folded(PhaseChanged("training"), step(100, seconds_left=300.0), state=state)
    assert time_lines(state) == ["Time left: 20 s of this epoch, 5 min of the run"]
    assert state.seconds_left == state.run_seconds_left  # the bottom bar shows the same
    state = folded(PhaseChanged("sampling"), SampleProgress(5, 50, 30.0), state=state)
    assert time_lines(state) == ["Time left: 30 s of sampling, 5 min 30 s of the run"]
    assert state.seconds_left == state.run_seconds_left
    assert time_lines(folded(RunFinished("finished", 100, "Done."), state=state)) == []
    assert time_lines(RunState()) == []


def test_a_finished_run_names_its_result() -> None:
    state = folded(started(), RunFinished("finished", 100, "Done.", "models/cat.safetensors"))
    assert "Result: models/cat.safetensors" in run_lines(state, is_active=False)


def test_memory_is_that_of_the_card_and_of_the_machine() -> None:
    machine = MemoryMeasured(3_140_000_000, 12_000_000_000, 64_000_000_000)
    assert memory_lines(machine) == ["Memory: 3.1 GB, of all programs 12.0 of 64.0 GB"]
    card = replace(machine, card=7_200_000_000, card_peak=7_900_000_000, card_total=24_000_000_000)
    assert memory_lines(card)[0] == "Card memory: 7.2 of 24.0 GB, 7.9 GB at most"
    lines = run_lines(folded(started(), step(3), card), is_active=True)
    assert "Card memory: 7.2 of 24.0 GB, 7.9 GB at most" in lines
    assert not any("memory" in line for line in run_lines(folded(started(), card), is_active=False))


def test_the_log_is_filtered_by_words_and_level_and_copied() -> None:
    lines = (LogLine(0.0, "Backup at step 5"), LogLine(1.0, "A backup failed", "error"), LogLine(2.0, "Low", "warning"))
    assert LogFilter().select(lines) == lines
    assert LogFilter("BACKUP step").select(lines) == lines[:1]
    assert LogFilter(level="warning").select(lines) == lines[1:]
    assert LogFilter("backup", "error").select(lines) == lines[1:2]
    assert LogFilter("nothing").select(lines) == ()
    assert as_text(lines[:2]) == f"{clock(0.0)}\tBackup at step 5\n{clock(1.0)}\tA backup failed"
