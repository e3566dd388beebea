"""The state of the queue in words. No Tk."""

from __future__ import annotations

from modules.system.problem import count
from ui.features.queue.model import QueueControl


def status_line(control: QueueControl) -> str:
    """Return who runs the queue and what is left, as a sentence."""
    num_open = sum(item.is_open for item in control.queue.items)
    left = f"{count(num_open, 'run')} left" if num_open else "nothing left"
    if control.problem:
        return control.problem
    if control.current is not None:
        after = ", then the queue stops" if control.is_last else f", {left}" if num_open else ", the last one"
        return f"Training {control.current.name}{after}."
    if control.is_running:
        return f"The queue starts when the current run has ended: {left}."
    if control.runner is not None:
        return f"Process {control.runner.pid} runs the queue: {left}."
    return f"{left[0].upper()}{left[1:]}." if control.queue.items else ""
