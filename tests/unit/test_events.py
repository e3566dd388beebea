"""Events as lines of JSON, there and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, fields
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.strategies import garbage
from trainer.event_lines import EVENT_TYPES, from_line, to_line, without_secrets
from trainer.events import (
    BackupSaved,
    Event,
    PhaseChanged,
    RunFinished,
    StepFinished,
    ValidationFinished,
)
from trainer.rollout_events import RolloutSampled, SampledImage

STEP = StepFinished(1, 2, 3, 4, 5, 6, 0.5, 0.4, 1.0, 2.0, 3.0, {"unet": 1e-4}, ("unet",), 1)


def same(one: Event, other: Event | None) -> bool:
    """Equal, with one NaN like another."""
    return type(one) is type(other) and repr(one) == repr(other)


def values_of(kind: type[Event] | type[SampledImage]) -> dict[str, st.SearchStrategy[Any]]:
    hints = get_type_hints(kind)
    values = {
        name: st.dictionaries(st.text(max_size=8), st.from_type(get_args(hint)[1]), max_size=3)
        for name, hint in hints.items()
        if get_origin(hint) is Mapping
    }
    return {f.name: values[f.name] if f.name in values else st.from_type(hints[f.name]) for f in fields(kind)}


st.register_type_strategy(SampledImage, st.builds(SampledImage, **values_of(SampledImage)))


@given(data=st.data(), kind=st.sampled_from(sorted(EVENT_TYPES)))
def test_every_event_comes_back_as_it_was(data: st.DataObject, kind: str) -> None:
    event = data.draw(st.builds(EVENT_TYPES[kind], **values_of(EVENT_TYPES[kind])))
    line = to_line(event, time="2026-03-04T05:06:07.000")
    assert "\n" not in line
    assert json.loads(line)["event"] == kind
    assert json.loads(line)["time"] == "2026-03-04T05:06:07.000"
    assert same(event, from_line(line))


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES))
def test_every_event_is_a_frozen_record(kind: str) -> None:
    assert EVENT_TYPES[kind].__doc__
    with pytest.raises((FrozenInstanceError, TypeError)):
        PhaseChanged("training").detail = "x"  # type: ignore[misc]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_does_not_end_the_run(loss: float) -> None:
    """A validation that gave NaN used to raise in the midst of telling so."""
    event = ValidationFinished(5, loss, {"100": loss}, {"cat": 0.5})
    line = to_line(event)
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert same(event, from_line(line))


def test_what_is_missing_has_its_default_and_what_is_new_is_left_out() -> None:
    assert from_line('{"event": "PhaseChanged", "phase": "training", "mood": "good"}') == PhaseChanged("training")
    assert from_line('{"event": "BackupSaved", "path": "x"}') is None


def test_half_a_line_is_none() -> None:
    line = to_line(STEP)
    assert [n for n in range(len(line)) if from_line(line[:n]) is not None] == []


@pytest.mark.parametrize(
    "line",
    [
        "", "\n", "null", "[]", "3", '"text"', "{}", "Traceback (most recent call last):", '{"event": "Telepathy"}',
        '{"event": null}', '{"event": []}', '{"event": {}}', '{"event": 5}', '{"event": ["StepFinished"]}',
        '{"event": "PhaseChanged", "phase": 5}', '{"event": "PhaseChanged", "phase": "dreaming"}',
        '{"event": "BackupSaved", "step": "x", "path": "y"}', '{"event": "BackupSaved", "step": 5, "path": null}',
        "[" * 100_000, "9" * 5000,
        f'{{"event": "PaceMeasured", "num_steps": 1, "step_seconds": 1, "process_peak": 1{"0" * 400}}}',
        '{"event": "PhaseChanged", "phase": "training"} x',
    ],
    ids=lambda line: line[:40],
)  # fmt: skip
def test_any_other_line_is_none(line: str) -> None:
    """A line whose kind was a list used to raise."""
    assert from_line(line) is None


@given(kind=st.sampled_from(sorted(EVENT_TYPES)), place=st.integers(0, 20), value=garbage, whole=garbage)
def test_garbage_never_raises(kind: str, place: int, value: Any, whole: Any) -> None:
    from_line(json.dumps(whole))
    if isinstance(whole, dict):
        from_line(json.dumps({**whole, "event": kind}))
    data = json.loads(to_line(STEP))
    data[sorted(data)[place % len(data)]] = value
    read = from_line(json.dumps(data))
    assert read is None or isinstance(read, StepFinished)


def test_values_have_their_types_again() -> None:
    event = from_line(to_line(STEP))
    assert event == STEP
    assert isinstance(event, StepFinished)
    assert isinstance(event.training_parts, tuple)
    assert asdict(event) == asdict(STEP)
    whole = from_line('{"event": "ValidationFinished", "step": 1, "loss": 2}')
    assert isinstance(whole, ValidationFinished)
    assert isinstance(whole.loss, float)


def test_texts_of_any_kind() -> None:
    event = RunFinished("finished", 3, "čau 猫 \u2028 \x00 \ud800 \n", "C:\\models\\x.safetensors")
    assert from_line(to_line(event)) == event
    assert to_line(event).isascii()
    assert from_line(to_line(BackupSaved(2**70, "x"))) == BackupSaved(2**70, "x")


def test_a_validation_of_an_older_run_is_read() -> None:
    line = (
        '{"event": "ValidationFinished", "step": 4, "loss": 0.5, "by_timestep": {"1": 0.5}, "by_concept": {"a": 0.5}}'
    )
    assert from_line(line) == ValidationFinished(4, 0.5, {"1": 0.5}, {"a": 0.5})
    assert not ValidationFinished(4, 0.5).is_best
    best = ValidationFinished(4, 0.5, weighted_loss=0.25, best_loss=0.5, best_step=4)
    assert from_line(to_line(best)) == best
    assert best.is_best


def test_the_prompts_of_a_rollout_hide_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.event_lines.redact", lambda text: text.replace("token-1", "…"))
    event = RolloutSampled(3, (SampledImage("/token-1/a.png", "a token-1 disc", 0.5), SampledImage("/b.png", "plain")))
    prompts = [(image.path, image.prompt) for image in without_secrets(event).images]
    assert prompts == [("/token-1/a.png", "a … disc"), ("/b.png", "plain")]
