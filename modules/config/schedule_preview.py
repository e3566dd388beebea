"""The learning rate over a run for the window, from the function that the run uses. Torch-free."""

from __future__ import annotations

from modules.config.schema import Config
from modules.optim.registry import optimizer_spec
from modules.optim.schedule_registry import SCHEDULES, factors_over_run, learning_rate_factor, warmup_length
from modules.settings.shared_types import BarPreview
from modules.system.errors import DarkroomError
from modules.system.problem import count

_NUM_POINTS = 240
_EXAMPLE_STEPS = 1000


def schedule_preview(config: Config, total_steps: int = 0) -> BarPreview:
    """Return the learning rate at steps from the first to the last, relative to the one that is set.

    `total_steps` is the length of the run; 0 if it is not known yet: then the caption names the length that is assumed.
    """
    training = config.training
    spec = SCHEDULES[training.schedule.name]
    wrong = next((problem.message for problem in spec.problems(training.schedule)), "")
    if wrong:
        return BarPreview((), 1.0, "", "", wrong)
    length = total_steps or max(_EXAMPLE_STEPS, 2 * warmup_length(training.schedule, _EXAMPLE_STEPS))
    try:
        points = factors_over_run(
            lambda step: learning_rate_factor(
                training.schedule,
                step=step,
                total_steps=length,
                epochs=training.epochs,
                learning_rate=training.learning_rate,
            ),
            length,
            num_points=_NUM_POINTS,
        )
    except DarkroomError as error:
        return BarPreview((), 1.0, "", "", error.message)
    factors = tuple(factor for _, factor in points)
    return BarPreview(
        factors, 1.0, "step 1", f"step {length:,}", _caption(config, factors, length, is_known=bool(total_steps)), True
    )


def _caption(config: Config, factors: tuple[float, ...], length: int, *, is_known: bool) -> str:
    training = config.training
    optimizer = optimizer_spec(training.optimizer)
    if optimizer.chooses_rate is not None and optimizer.chooses_rate(training.optimizer):
        return f"{optimizer.label} chooses its learning rate itself."
    highest, last = (f"{training.learning_rate * factor:.3g}" for factor in (max(factors), factors[-1]))
    where = "" if is_known else f", in a run of {count(length, 'step')} for example"
    return f"Learning rate: {highest} at its highest, {last} at the end{where}."
