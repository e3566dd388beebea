"""How long a LoRA is trained by its subject, and the warning for runs that are far too short or too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.presets import DEMO, list_presets
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.concept import Concept
from modules.data.subjects import SUBJECTS, Amount, length_choices
from modules.settings.edit import replace_value
from modules.settings.every import Every
from modules.system.problem import Problem
from tests.builders.budgets import budget_of_run
from tests.builders.images import draw_folder
from trainer.data.datasets import datasets_of
from trainer.preflight.subject_length import amount_of, problems_of_subject_length, with_epochs

PRESETS = {p.name: p for p in list_presets()}


def _found(name: str, images: Path, *, epochs: int, repeats: float) -> list[Problem]:
    config = replace_value(PRESETS[name].load().config, "training.epochs", epochs)
    config = replace_value(config, "concepts", (Concept(path=str(images), repeats=repeats),))
    budget = budget_of_run(config, {Size(512, 512): 10})
    return list(problems_of_subject_length(budget, datasets_of(config).training))


def test_the_usual_length_grows_with_the_images_between_its_limits() -> None:
    person = SUBJECTS["person"]
    assert [person.views(n) for n in (1, 20, 30, 500)] == [1000, 2000, 3000, 3000]
    for subject in SUBJECTS.values():
        assert subject.least_views < subject.most_views


def test_the_choices_are_the_epochs_of_each_subject_whatever_the_batch_and_the_repeats() -> None:
    choices = length_choices(Amount(20, 20, 2))
    assert [(c.subject.name, c.epochs, c.steps) for c in choices] == [
        ("person", 100, 1000),
        ("object", 60, 600),
        ("style", 80, 800),
        ("concept", 80, 800),
    ]
    repeated = length_choices(Amount(20, 200, 4))
    assert (repeated[0].epochs, repeated[0].steps) == (10, 500)
    assert length_choices(Amount(0, 0, 1)) == length_choices(Amount(3, 0, 1)) == ()


def test_a_longer_run_has_as_many_samples_and_validations() -> None:
    config = replace_value(Config(), "sampling.every", Every(n=2, unit="epoch"))
    config = replace_value(config, "validation.every", Every(n=100, unit="step"))
    longer = with_epochs(config, 50)
    assert longer.training.epochs == 50
    assert (longer.sampling.every.n, longer.validation.every.n) == (10, 100)
    assert with_epochs(longer, 1).sampling.every.n == 1


@pytest.mark.parametrize(
    ("epochs", "repeats", "seen"),
    [(10, 1, "10 times, probably too few"), (20, 1, "20 times"), (50, 1, ""), (10, 10, ""), (2000, 1, "2,000 times")],
)
def test_far_too_short_and_far_too_long_runs_are_warnings(
    epochs: int, repeats: float, seen: str, tmp_path: Path
) -> None:
    draw_folder(tmp_path, sizes=[(64, 64)] * 10)
    found = _found("#sd 1.5 LoRA", tmp_path, epochs=epochs, repeats=repeats)
    assert len(found) == bool(seen)
    for problem in found:
        assert (problem.path, problem.severity, problem.remedy) == ("training.epochs", "warning", "length")
        assert f"{epochs * 5:,} steps with 10 images: each is seen {seen}" in problem.message
        assert "Usual are 60 to 150 epochs for so many images, by subject: person 100, object 60" in problem.advice


def test_methods_of_another_length_and_toys_are_left_alone(tmp_path: Path) -> None:
    draw_folder(tmp_path, sizes=[(64, 64)] * 10)
    for name in ("#sd 1.5 fine-tune", "#sd 1.5 embedding", "#sd 1.5 GRPO LoRA", DEMO):
        assert _found(name, tmp_path, epochs=1, repeats=1) == []
    demo = PRESETS[DEMO].load().config
    assert amount_of(demo, datasets_of(demo).training) == Amount(36, 168, 12, 14)
