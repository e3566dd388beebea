"""A run's events in words for a terminal."""

from __future__ import annotations

import io

from trainer.cli.console import Console, words
from trainer.event_lines import from_line
from trainer.events import (
    CacheFilled,
    CacheProgress,
    ImagesDropped,
    ModelSaved,
    RewardMeasured,
    StepFinished,
    ValidationFinished,
)


def test_a_validation_reports_all_its_losses() -> None:
    by_timestep, by_concept = {"250": 0.25, "750": 0.75}, {"cats": 0.625, "dogs": 0.375}
    assert words(ValidationFinished(8, 0.5, by_timestep, by_concept, 0.125, 0.5, 8)) == (
        "validation loss 0.50000 (weighted 0.12500) at step 8, best 0.50000 at step 8; cats 0.62500, dogs 0.37500, "
        "timestep 250 0.25000, timestep 750 0.75000"
    )


def test_one_concept_is_not_reported_twice_and_an_older_event_has_less() -> None:
    assert words(ValidationFinished(8, 0.5, {}, {"cats": 0.5})) == "validation loss 0.50000 at step 8"


def test_a_measurement_of_the_reward_is_a_line() -> None:
    assert words(RewardMeasured(20, 8, 0.5, 0.25, "contrast", best_step=10)) == (
        "reward 0.50000, held-out reward (contrast) 0.25000 at step 20, best at step 10"
    )
    assert words(RewardMeasured(0, 8, None)) == "reward none at step 0"


def test_a_saved_model_says_how_completely_every_program_loads_it() -> None:
    everywhere = dict.fromkeys(("ComfyUI", "A1111", "Forge", "diffusers"), "yes")
    assert words(ModelSaved(5, "m", "kohya", True, tuple(everywhere), everywhere)) == (
        "saved: m (loads in ComfyUI, A1111, Forge and diffusers)"
    )
    unknown = {"ComfyUI": "?", "A1111": "?", "diffusers": "yes"}
    reasons = dict.fromkeys(("ComfyUI", "A1111"), "made for another size")
    assert words(ModelSaved(5, "m", "kohya", True, ("diffusers",), unknown, (), reasons)) == (
        "saved: m (loads in diffusers; not tested in ComfyUI and A1111: made for another size)"
    )
    partly = {"ComfyUI": "partly", "A1111": "no", "Forge": "no"}
    assert words(ModelSaved(5, "m", "kohya", True, (), partly)) == (
        "saved: m (partly in ComfyUI; not in A1111 and Forge)"
    )
    assert words(ModelSaved(5, "m", "kohya", True)) == "saved: m"


def test_a_saved_model_of_an_older_log_names_the_programs_that_load_it() -> None:
    line = (
        '{"event": "ModelSaved", "step": 5, "path": "m", "format": "kohya", "is_final": true, "loaded_by": ["Forge"]}'
    )
    event = from_line(line)
    assert event is not None
    assert words(event) == "saved: m (loads in Forge)"


def test_caching_shows_the_time_left_and_then_the_hit_rate() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.show(CacheProgress("images", 3, 12, 75.4))
    console.show(CacheFilled("images", 12, 3, 1_500_000))
    console.close()
    assert stream.getvalue() == (
        "caching images 3/12 0:01:15 left\nLatent cache: 3 of 12 entries found (25%), 9 encoded; 1.5 MB.\n"
    )


def test_dropped_images_are_named_up_to_a_number() -> None:
    assert words(ImagesDropped(1, 1, ("a.png",), "/run/dropped.csv")) == (
        "Epoch 1 drops 1 image in partial batches: a.png."
    )
    assert words(ImagesDropped(2, 1002, ("a.png", "b.png"), "/run/dropped.csv")) == (
        "Epoch 2 drops 1,002 images in partial batches, all in dropped.csv: a.png, b.png and 1,000 more."
    )


def test_a_step_shows_the_rate_that_the_optimizer_found() -> None:
    stream = io.StringIO()
    step = StepFinished(1, 2, 3, 4, 8, 8, 0.5, None, 1.0, 2.0, 3.0, {"unet": 1.0}, effective_rates={"unet": 3.25e-5})
    Console(stream).show(step)
    assert stream.getvalue() == "training 8/8 epoch 1/2 loss 0.5000 effective rate 3.25e-05 2 images/s\n"
