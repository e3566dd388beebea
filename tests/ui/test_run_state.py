"""The reducer: the state of a run, event by event."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import get_args

import pytest

from modules.system.paths import PROGRAM_ROOT
from modules.system.problem import count
from tests.ui.fake_engine import started, step
from trainer.events import (
    BackupSaved,
    CacheFilled,
    CacheProgress,
    DownloadProgress,
    Event,
    ImagesDropped,
    ModelSaved,
    PhaseChanged,
    RewardMeasured,
    RunFailed,
    RunFinished,
    RunStarted,
    SampleProgress,
    SampleReady,
    StepFinished,
    ValidationFinished,
    WarningRaised,
)
from trainer.log_lines import line_of
from trainer.machine_events import (
    BlocksCompiled,
    ImagesReported,
    MemoryMeasured,
    PaceMeasured,
    ProfileWritten,
    SettingChosen,
)
from trainer.rollout_events import ChoicesWanted, RolloutSampled, SampledImage
from trainer.wording import format_loss, format_rate, format_speed
from ui.loop.folding import MAX_LOG_LINES, fold
from ui.loop.run_state import RunState
from ui.loop.wording import concept_rows, format_download, format_duration, timestep_rows, validation_line


def folded(*events: Event, state: RunState | None = None) -> RunState:
    state = state or RunState()
    for at_seconds, event in enumerate(events):
        state = fold(state, event, float(at_seconds))
    return state


def test_nothing_is_shown_at_first() -> None:
    state = RunState()
    assert (state.run_share, state.epoch_share, state.phase_share, state.seconds_left) == (0, 0, None, None)
    assert state.log == ()
    assert not state.is_over


def test_steps_move_both_bars() -> None:
    state = folded(started(), PhaseChanged("training"), step(100))
    assert state.run_share == 0.25
    assert state.epoch_share == 0.5
    assert state.seconds_left == 75.0
    assert state.training_parts == ("unet", "text_encoder")


def test_a_resumed_run_starts_at_its_step() -> None:
    assert folded(started(first_step=200)).run_share == 0.5


def test_caching_and_sampling_have_shares_of_their_own() -> None:
    state = folded(started(), PhaseChanged("caching"), CacheProgress("images", 3, 12, 9.0))
    assert (state.phase_share, state.seconds_left) == (0.25, 9.0)
    state = folded(step(1), PhaseChanged("sampling"), SampleProgress(5, 50, 2.0), state=state)
    assert (state.phase_share, state.seconds_left) == (0.1, 2.0 + 75.0)  # the current sampling, and the training
    state = folded(PhaseChanged("sampling"), SampleProgress(5, 50, 2.0))  # before the first step
    assert (state.phase_share, state.seconds_left) == (0.1, 2.0)
    assert folded(PhaseChanged("training"), state=state).phase_share is None


def test_a_download_has_a_share_too() -> None:
    state = folded(PhaseChanged("loading"), DownloadProgress(500.0, 2000.0, 30.0))
    assert (state.phase_share, state.seconds_left) == (0.25, 30.0)
    assert state.downloading == DownloadProgress(500.0, 2000.0, 30.0)
    assert folded(PhaseChanged("scanning"), state=state).phase_share is None


def test_a_download_that_is_complete_is_no_longer_shown_as_one() -> None:
    state = folded(
        PhaseChanged("loading"), DownloadProgress(500.0, 2000.0, 30.0), DownloadProgress(2000.0, 2000.0, 0.0)
    )
    assert (state.downloading, state.phase_share, state.seconds_left) == (None, None, None)
    assert folded(PhaseChanged("loading")).downloading is None
    assert folded(PhaseChanged("loading"), DownloadProgress(0.0, 0.0)).downloading is None


def test_a_download_as_text() -> None:
    assert format_download(DownloadProgress(1500.0, 4000.0), "owner/model") == "38%, 1,500 of 4,000 MB of owner/model"
    assert format_download(DownloadProgress(0.0, 0.0), "") == "0%, 0 of 0 MB"


EVERY_EVENT: dict[type[Event], tuple[Event, set[str]]] = {
    RunStarted: (started(), {"started", "log", "timing"}),
    PhaseChanged: (PhaseChanged("loading", "owner/model"), {"phase", "detail", "log"}),
    DownloadProgress: (DownloadProgress(1.0, 2.0), {"download"}),
    CacheProgress: (CacheProgress("images", 1, 2), {"cache"}),
    CacheFilled: (CacheFilled("images", 10, 7, 1000), {"log"}),
    ImagesDropped: (ImagesDropped(1, 2, ("a.png", "b.png")), {"log"}),
    BlocksCompiled: (BlocksCompiled(16, 8, 34.9), {"log"}),
    SettingChosen: (SettingChosen("model.channels_last", "Channels last is off."), {"log"}),
    ProfileWritten: (ProfileWritten(12, 10, "/run/profile"), {"log"}),
    ImagesReported: (ImagesReported(5, 20, "None stands out.", "/report"), {"image_report", "log"}),
    PaceMeasured: (PaceMeasured(40, 0.5, 2_000_000_000), {"log"}),
    MemoryMeasured: (MemoryMeasured(1, 2, 3), {"memory"}),
    StepFinished: (step(1), {"step", "trained_parts", "series", "metrics", "timing"}),  # the gradient norm
    ValidationFinished: (ValidationFinished(5, 0.5), {"validations", "log"}),
    RewardMeasured: (RewardMeasured(5, 8, 0.5), {"rewards", "log"}),
    RolloutSampled: (RolloutSampled(5, (SampledImage("/a.png", "a cat", 0.5),)), {"rollout"}),
    ChoicesWanted: (ChoicesWanted(5, "/choices", 2), {"choices"}),
    SampleProgress: (SampleProgress(1, 2), {"sampling"}),
    SampleReady: (SampleReady(5, 0, "a cat", "/a.png"), {"samples"}),
    BackupSaved: (BackupSaved(5, "/backup/step-5"), {"backup", "log"}),
    ModelSaved: (ModelSaved(5, "/m.safetensors", "kohya", is_final=False), {"saves", "log"}),
    WarningRaised: (WarningRaised("An image is broken."), {"log"}),  # logged; nothing else changes
    RunFinished: (RunFinished("finished", 400, "Done."), {"finished", "log"}),
    RunFailed: (RunFailed("It broke."), {"failed", "log"}),
}


def test_every_event_is_known() -> None:
    assert EVERY_EVENT.keys() == set(get_args(Event))


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_what_an_event_changes(kind: type[Event]) -> None:
    event, changed = EVERY_EVENT[kind]
    before, after = RunState(), folded(event)
    assert {f.name for f in fields(RunState) if getattr(before, f.name) != getattr(after, f.name)} == changed


def test_a_loss_that_is_not_finite_is_a_gap_in_the_curve() -> None:
    state = folded(step(1, loss=math.nan), step(2, loss=None, smoothed_loss=math.inf), step(3))
    assert [value is None for _, value in state.curve("loss")] == [True, True, False]
    assert format_loss(math.nan) == "–"


def test_samples_validations_saves_and_backups_are_kept() -> None:
    state = folded(
        SampleReady(0, 0, "a cat", "/a.png"), SampleReady(5, 0, "a cat", "/b.png"), ValidationFinished(5, 0.5),
        BackupSaved(5, "/backup/step-5"), ModelSaved(5, "/m.safetensors", "kohya", is_final=False),
    )  # fmt: skip
    assert [s.path for s in state.samples] == ["/a.png", "/b.png"]
    assert [v.loss for v in state.validations] == [0.5]
    assert state.backup is not None
    assert len(state.saves) == 1


def test_the_newest_validation_contains_the_best() -> None:
    first = ValidationFinished(5, 0.5, {"100": 0.25}, {"cats": 0.5}, 0.5, best_loss=0.5, best_step=5)
    second = ValidationFinished(9, 0.75, {"100": 0.5}, {"cats": 0.75}, 0.25, best_loss=0.5, best_step=5)
    assert RunState().validation is None
    state = folded(ValidationFinished(0, 0.25), first, second)
    assert state.validation == second
    assert [line.text for line in state.log] == [
        "Validation loss 0.2500 at step 0",
        "Validation loss 0.5000 at step 5, best so far",
        "Validation loss 0.7500 at step 9; best 0.5000 at step 5",
    ]
    assert validation_line(second) == "Validation: 0.7500 at step 9; best 0.5000 at step 5"
    assert concept_rows(first) == [("overall", "0.5000"), ("cats", "0.5000")]
    assert concept_rows(second) == [("overall", "0.7500"), ("weighted", "0.2500"), ("cats", "0.7500")]
    assert timestep_rows(second) == [("100", "0.5000")]


@pytest.mark.parametrize("last", [RunFinished("finished", 400, "Done."), RunFailed("It broke.", "Fix it.")])
def test_finished_or_failed_ends_the_run(last: Event) -> None:
    state = folded(started(), PhaseChanged("training"), step(3), last)
    assert state.is_over
    assert state.phase == ""
    assert state.seconds_left is None


def test_the_log_lines() -> None:
    state = folded(
        started(), PhaseChanged("loading", "from disk"), CacheProgress("images", 1, 2), step(1),
        WarningRaised("An image is broken.", "Remove it."), RunFailed("It broke.", "Fix it."),
    )  # fmt: skip
    assert [(line.text, line.tone) for line in state.log[1:]] == [
        ("Loading the model: from disk", "plain"),
        ("An image is broken. Remove it.", "warning"),
        ("It broke. Fix it.", "error"),
    ]
    assert state.log[0].text == "400 steps over 12 images; 123,456 trainable parameters on cpu"
    assert line_of(step(1), 0.0) is None


def test_a_final_model_is_named_by_its_path_in_the_program_folder() -> None:
    path = PROGRAM_ROOT / "models" / "zog.safetensors"
    line = line_of(ModelSaved(5, str(path), "kohya", is_final=True, loaded_by=("ComfyUI",)), 0.0)
    assert line is not None
    assert line.text == "Final model saved: models/zog.safetensors (loads in ComfyUI)"


def test_a_final_model_says_how_completely_every_program_loads_it() -> None:
    loading = {"ComfyUI": "partly", "A1111": "no", "Forge": "no", "diffusers": "yes"}
    line = line_of(ModelSaved(5, "/m.safetensors", "diffusers", True, ("diffusers",), loading), 0.0)
    assert line is not None
    assert line.text.endswith("(loads in diffusers; partly in ComfyUI; not in A1111 and Forge)")
    needs = ("A1111: keep the .yaml next to it",)
    line = line_of(ModelSaved(5, "/m.safetensors", "single_file", True, ("A1111",), {"A1111": "yes"}, needs), 0.0)
    assert line is not None
    assert line.text.endswith("(loads in A1111; A1111: keep the .yaml next to it)")


def test_the_log_is_bounded() -> None:
    state = folded(*(WarningRaised(str(n)) for n in range(MAX_LOG_LINES + 50)))
    assert len(state.log) == MAX_LOG_LINES
    assert state.log[-1].text == str(MAX_LOG_LINES + 49)


def test_a_state_is_never_changed_in_place() -> None:
    before = folded(started(), step(1))
    after = folded(step(2), state=before)
    assert before.step is not None
    assert after.step is not None
    assert (before.step.step, after.step.step) == (1, 2)
    assert len(before.curve("loss")) == 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),
        (0, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3725, "1 h 2 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert format_duration(seconds) == words


def test_counts_as_text() -> None:
    assert (count(1, "step"), count(1200, "step")) == ("1 step", "1,200 steps")
    assert (format_loss(None), format_loss(0.12345), format_loss(1e-5), format_loss(12345.0)) == (
        "–",
        "0.1235",
        "1e-5",
        "1.23e+04",
    )
    assert (format_rate(1e-4), format_rate(3e-6)) == ("0.0001", "3e-6")


def test_speeds_have_three_digits() -> None:
    """A large model's 0.03 images a second were 0.0 in the terminal, and 1,234 were 1.23e+03 in the window."""
    assert [format_speed(speed) for speed in (0.0312, 2.0, 12.345, 1234.5)] == ["0.0312", "2", "12.3", "1,234"]
