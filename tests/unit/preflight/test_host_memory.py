"""The computer's memory that a start needs, from the shapes and dtypes of the parts."""

from __future__ import annotations

from collections import Counter
from typing import Any

from modules.config.schema import Config
from modules.data.buckets import Size
from trainer.preflight.budget import describe_memory
from trainer.preflight.run_budget import Budget, describe_reading, known_budget, problems_of_reading, reading_bytes

PARTS: dict[str, Any] = {
    "transformer": {"dtype": "bfloat16"},
    "text_encoder": {"train": False, "dtype": "bfloat16"},
    "text_encoder_2": {"train": False, "dtype": "bfloat16"},
    "vae": {"dtype": "bfloat16"},
}
TRANSFORMER, T5, OTHERS = 23.8e9, 9.5e9, 0.41e9  # bytes of FLUX.1's parts in bfloat16


def budget_of(device: str = "cuda", **data: Any) -> Budget:
    tree = {
        "general": {"train_device": device},
        "model": {"family": {"name": "flux"}, "base_model": "black-forest-labs/FLUX.1-dev"},
        "parts": PARTS,
        "data": {"text_cache": True, **data},
        "training": {"precision": "bfloat16"},
    }
    budget = known_budget(Config.model_validate(tree), Counter({Size(512, 512): 4}))
    assert budget is not None
    return budget


def test_a_large_encoder_and_the_denoiser_are_never_in_memory_together() -> None:
    assert abs(reading_bytes(budget_of()) - (TRANSFORMER + OTHERS)) < 0.01 * TRANSFORMER
    together = reading_bytes(budget_of(text_cache=False))
    assert abs(together - (TRANSFORMER + T5 + OTHERS)) < 0.01 * TRANSFORMER


def test_it_is_in_the_preview_of_a_run_on_a_card() -> None:
    on_card = budget_of()
    assert describe_reading(on_card) == "About 24.2 GB of the computer's memory while the model is read."
    assert describe_reading(on_card) in describe_memory(on_card, on_card)
    assert "the computer's" not in describe_memory(budget_of("cpu"), budget_of("cpu"))


def test_too_little_memory_is_a_warning() -> None:
    [problem] = problems_of_reading(budget_of(), free=lambda: 16 * 10**9)
    assert (problem.path, problem.severity) == ("model.base_model", "warning")
    assert problem.message.startswith("Reading the model takes about 24.2 GB of the computer's memory, and 16.0 GB are")
    assert not list(problems_of_reading(budget_of(), free=lambda: 32 * 10**9))
