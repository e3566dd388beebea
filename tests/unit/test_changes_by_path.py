"""--set: what is said of a setting that is not there."""

from __future__ import annotations

import pytest

from modules.config.schema import Config
from modules.system.errors import DarkroomError
from trainer.jobs.config import apply_changes


@pytest.mark.parametrize(
    ("change", "guess"),
    [
        ("training.batchsize=3", "Did you mean training.batch_size? "),
        ("epochs=3", "Did you mean training.epochs? "),
        ("learning_rate=3", "Did you mean training.learning_rate or embeddings.learning_rate? "),
        ("nonsense=1", ""),
    ],
)
def test_a_setting_that_is_not_there_is_guessed(change: str, guess: str) -> None:
    with pytest.raises(DarkroomError) as caught:
        apply_changes(Config(), [change])
    assert caught.value.message.startswith(f"--set {change}: There is no setting ")
    assert caught.value.advice == f"{guess}All settings are listed by python -m trainer schema --markdown."
