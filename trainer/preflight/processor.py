"""Runs on the processor of a machine without a GPU: those sized for a GPU are errors, slow ones warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from modules.config.schema import Config
from modules.estimate.run import in_gb
from modules.estimate.step_time import step_seconds
from modules.system import hardware
from modules.system.problem import Problem, about, count
from trainer.preflight.machine import Machine, this_machine
from trainer.preflight.presets_here import MAX_IMAGE_SECONDS, names_on_processor
from trainer.preflight.run_budget import TIGHT, Budget
from trainer.preflight.search import StepTimes

_LONG_SECONDS = 1800.0  # a run of less is not worth a warning
_DEVICE = "general.train_device"


def problems_of_processor(
    budget: Budget, *, total_steps: int, machine_of: Callable[[Config], Machine] = this_machine
) -> Iterator[Problem]:
    """Yield an error for a run that needs a GPU where there is none, a warning for one that takes long without it.

    Nothing where the run may use a GPU, or where that is not certain. A run that only takes too long is a warning, too,
    if the processor was chosen by name. `machine_of(config)` returns the hardware of this machine.
    """
    config = budget.config
    if hardware.here().kind_of(config.general.train_device) != "cpu":
        return
    machine, needed = machine_of(config), budget.peak_bytes
    is_chosen = config.general.train_device.strip().lower() == "cpu"
    why = "The training device is the processor (cpu)." if is_chosen else machine.why_no_gpu
    if needed > TIGHT * machine.memory_bytes:
        has = f"the computer has {in_gb(machine.memory_bytes)}"
        message = f"{why} The run needs about {in_gb(needed)} of memory, and {has}."
        yield Problem(_DEVICE, message, advice=_other_ways(machine), remedy="preset")
        return
    step = step_seconds(StepTimes(budget).facts(config), num_cores=machine.num_cores)
    times = (
        f"On {count(machine.num_cores, 'core')} of the processor a step takes about {about(step)}, and the "
        f"{count(total_steps, 'step')} of the run about {about(step * total_steps)}, without the samples."
    )
    if step > MAX_IMAGE_SECONDS * config.training.batch_size * config.training.accumulation_steps:
        yield Problem(
            _DEVICE,
            f"{why} The run is sized for a GPU. {times}",
            "warning" if is_chosen else "error",
            _other_ways(machine) + ("" if is_chosen else " To train here all the same, set the device to cpu."),
            "preset",
        )
    elif step * total_steps > _LONG_SECONDS:
        yield Problem(
            _DEVICE, f"{why} {times}", "warning", "Smaller images and fewer steps are faster. A GPU takes minutes."
        )


def _other_ways(machine: Machine) -> str:
    """Return the advice: presets that the processor can train, or another machine."""
    names = " or ".join(names_on_processor(machine))
    smaller = f"Choose a smaller model, such as the preset {names}" if names else "Choose a smaller model"
    return f"{smaller}, or train on a machine with a GPU (python -m trainer train CONFIG)."
