"""The self-test's measures of every family, of random weights."""

from __future__ import annotations

import math
from pathlib import Path

from modules.config.schema import Config
from tests.builders.flow_models import FlowModel
from trainer.job import Job
from trainer.probe.model_measures import measure_model
from trainer.probe.self_test_verdict import of_prompts


def test_a_model_is_measured(config: Config, tiny: FlowModel) -> None:
    image = sorted(Path(config.concepts[0].path).glob("*.png"))[0]
    job = Job(lambda _event: None)
    found = measure_model(config, image, side_px=tiny.side_px, num_timesteps=10, job=job, what="looking")
    assert found.broken_parts == ()
    numbers = (found.latents_rms, found.decoding_error, found.colour_fit, found.colour_spread)
    assert all(map(math.isfinite, numbers))
    assert of_prompts(found) is not None, "random weights know no colours"
    bounds = list(found.bounds.values())
    assert len(bounds) == 10
    assert min(bounds) > 0
    if not tiny.is_flow:
        assert bounds == sorted(bounds, reverse=True), "noise is easy to guess where there is much of it"
