"""Unusual settings that can run."""

from __future__ import annotations

from typing import Any

import pytest

from modules.config.schema import Config
from tests.unit.preflight.setups import changed, reported
from trainer.preflight import check


@pytest.mark.parametrize(
    ("changes", "path", "severity"),
    [
        ({"data__resolution_px": [100], "data__bucket_step_px": 64}, "data.resolution_px", "warning"),
        ({"data__resolution_px": [64, 72], "training__batch_size": 1}, "data.resolution_px", "warning"),
        ({"training__learning_rate": 1.0}, "training.learning_rate", "warning"),
        ({"sampling__at_start": True}, "sampling.prompts", "info"),
        ({"sampling__every": {"n": 1, "unit": "epoch"}}, "sampling.prompts", "info"),
        ({"parts__unet__stop_after": {"n": 2, "unit": "epoch"}}, "parts.unet.stop_after", "info"),
        ({"parts__unet__stop_after": {"n": 0, "unit": "epoch"}}, "parts.unet.stop_after", "warning"),
        ({"training__precision": "float16"}, "training.precision", "warning"),
        ({"training__precision": "tfloat32"}, "training.precision", "info"),
    ],
)
def test_unusual_settings_that_can_run(config: Config, changes: dict[str, Any], path: str, severity: str) -> None:
    report = check(changed(config, **changes))
    assert reported(report) == [(path, severity)]


FULL = {"training__trains": "full", "training__learning_rate": 1e-4, "parts__unet__dtype": "float16"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (FULL, [("parts.unet.dtype", "warning")]),
        (
            {**FULL, "training__precision": "bfloat16"},
            [("parts.unet.dtype", "warning")] * 2,
        ),  # also not the train dtype
        ({**FULL, "training__low_precision_updates": "stochastic"}, [("training.low_precision_updates", "error")]),
        ({**FULL, "parts__unet__train": False}, []),
        ({**FULL, "parts__unet__dtype": "bfloat16"}, []),
        ({**FULL, "training__trains": "adapter"}, []),
        ({**FULL, "training__precision": "float16"}, [("training.precision", "warning")]),  # slow on a CPU
    ],
)
def test_weights_that_are_trained_in_float16(
    config: Config, changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    found = reported(check(changed(config, **changes)))
    assert [f for f in found if f != ("adapter", "info")] == expected  # the adapter of the config is not used
