"""A run as text: what is trained, rates, time left, memory, the newest rollout, and settings that it does not have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from modules.families.registry import FAMILIES
from modules.objectives.registry import METHODS
from modules.system.problem import count, describe_data, list_first
from trainer.machine_events import MemoryMeasured
from trainer.rollout_events import RolloutSampled, SampledImage
from trainer.run_folder.elsewhere import Elsewhere
from trainer.wording import (
    PHASE_LABELS,
    format_loss,
    format_rate,
    format_speed,
    part_label,
    reward_label,
    reward_line,
)
from ui.forms.changes import Change
from ui.loop.metric_curves import short_number
from ui.loop.run_state import RunState
from ui.loop.wording import cost_text, describe_continuation, format_duration, validation_line

_GB = 1e9


def run_lines(state: RunState, *, is_active: bool, remote: str = "") -> list[str]:
    """Return the facts of a run that has started, one per line; `remote` is the other machine that it is on."""
    started = state.started
    assert started is not None
    family = FAMILIES.get(started.family)
    labels = family.part_labels if family else {}
    names = state.training_parts if is_active or not state.trained_parts else state.trained_parts
    parts = ", ".join(part_label(name, labels) for name in names) or "nothing"
    failed = state.failed
    lines: list[str] = []
    if failed is not None:
        lines += [f"{failed.status.label}. {describe_continuation(failed, started.run_dir, remote)}"]
    lines += [f"{'Training' if is_active else 'Trained'}: {parts}"]
    lines += time_lines(state) if is_active else []
    lines += _step_lines(state, labels)
    if state.validation is not None:
        lines.append(validation_line(state.validation))
    if state.rewards:
        lines.append(reward_line(state.rewards[-1]))
    if state.finished is not None and state.finished.model_path:
        name = "Last model" if state.finished.outcome == "stopped" else "Result"
        lines.append(f"{name}: {state.finished.model_path}")
    if state.memory is not None and is_active:
        lines += memory_lines(state.memory)
    data = describe_data(started.num_images, started.num_prompts, started.num_pairs)
    return [*lines, f"{data} on {started.device}, run {Path(started.run_dir).name}"]


def verdict_line(state: RunState) -> str:
    """Return the verdict on the losses of a run; empty if they show nothing: the loss of some methods does not compare
    predictions to targets.
    """
    import numpy as np  # which the window does not need to open

    from modules.objectives.loss_verdict import read_losses

    method = METHODS.get(state.started.method) if state.started is not None else None
    losses = state.series.get("loss")
    if method is None or losses is None or method.rollout is not None:
        return ""
    if not method.has_denoising_loss(method.settings()):
        return ""
    points = losses.finite_points()
    if unscaled := state.metrics.get("unscaled_loss"):  # learned weights bring the loss itself to 1, whatever it was
        points = np.array(unscaled.points, dtype=np.float64).reshape(-1, 2)
    rates = next((series.finite_points() for name, series in state.series.items() if name.startswith("rate")), None)
    validations = [(v.step, v.loss) for v in state.validations if math.isfinite(v.loss)]
    return read_losses(points, validations, rates).sentence


def _step_lines(state: RunState, labels: Mapping[str, str]) -> list[str]:
    step = state.step
    if step is None:
        return []
    lines = [f"Step {step.step:,} of {step.total_steps:,} in total, {format_speed(step.images_per_second)} images/s"]
    for name, rates in (("Learning", step.learning_rates), ("Effective learning", step.effective_rates)):
        if rates:
            lines.append(f"{name} rate: {_rates({part_label(u, labels): format_rate(r) for u, r in rates.items()})}")
    if step.num_skipped:
        lines.append(f"{count(step.num_skipped, 'skipped step')}")
    return lines


def time_lines(state: RunState) -> list[str]:
    """Return the time left of the phase and of the run as a line; an empty list if neither is known."""
    of_phase, of_run = state.phase_seconds_left, state.run_seconds_left
    name = "this epoch" if state.phase == "training" else PHASE_LABELS.get(state.phase, state.phase).lower()
    parts = [f"{format_duration(of_phase)} of {name}"] if of_phase is not None else []
    parts += [f"{format_duration(of_run)} of the run"] if of_run is not None else []
    return [f"Time left: {', '.join(parts)}"] if parts else []


def machine_line(state: RunState, elsewhere: Elsewhere, begun: float | None) -> str:
    """Return on which other machine a run trains, and what that has cost so far and at the end, if it has a price.

    `begun` is when the run began, in seconds since 1970.
    """
    lasted = state.timing.machine_seconds(begun) if begun is not None else 0.0
    so_far = cost_text(elsewhere.price_per_hour, lasted)
    if not so_far:
        return f"On {elsewhere.remote}"
    if state.is_over:
        return f"On {elsewhere.remote}, for about {so_far}"
    left = state.run_seconds_left
    at_end = f", {cost_text(elsewhere.price_per_hour, lasted + left)} at the end" if left is not None else ""
    return f"On {elsewhere.remote}: about {so_far} so far{at_end}"


def memory_lines(memory: MemoryMeasured) -> list[str]:
    """Return the memory of the card and of the machine, a line each; without a card, only of the machine."""
    lines = []
    if memory.card_total:
        most = f", {memory.card_peak / _GB:,.1f} GB at most" if memory.card_peak > memory.card else ""
        lines.append(f"Card memory: {memory.card / _GB:,.1f} of {memory.card_total / _GB:,.1f} GB{most}")
    machine = f"{memory.machine_used / _GB:,.1f} of {memory.machine_total / _GB:,.1f} GB"
    return [*lines, f"Memory: {memory.process / _GB:,.1f} GB, of all programs {machine}"]


def _rates(by_unit: Mapping[str, str]) -> str:
    """Return learning rates as text: one number if all are the same."""
    is_one = len(set(by_unit.values())) == 1
    return next(iter(by_unit.values())) if is_one else ", ".join(f"{unit} {rate}" for unit, rate in by_unit.items())


def rollout_line(rollout: RolloutSampled) -> str:
    """Return a rollout as a line: its step, its number of images and prompts, and their mean reward."""
    rewards = [i.reward for i in rollout.images if i.reward is not None and math.isfinite(i.reward)]
    mean = f", mean reward {short_number(sum(rewards) / len(rewards))}" if rewards else ""
    prompts = count(len({image.prompt for image in rollout.images}), "prompt")
    return f"Step {rollout.step + 1:,}: {count(len(rollout.images), 'image')} of {prompts}{mean}"


def describe_image(image: SampledImage) -> str:
    """Return an image of a rollout with its prompt, its reward and the score of each reward model."""
    mark = f", {image.mark} of its prompt" if image.mark else ""
    reward = f"Reward {format_loss(image.reward)}{mark}" if image.reward is not None else f"No score{mark}"
    scores = "   ".join(f"{reward_label(name)} {format_loss(value)}" for name, value in image.by_reward_model.items())
    return "\n".join(line for line in (" ".join(image.prompt.split()), reward, scores) if line)


_MAX_NAMED = 4


def describe_edits(changes: Sequence[Change]) -> str:
    """Return the settings that differ from the run's, as text; empty if none do."""
    if not changes:
        return ""
    names = [change.place.rpartition("›")[2].strip() for change in changes]
    verb = "It applies" if len(changes) == 1 else "They apply"
    number = count(len(changes), "setting")
    return f"Changed since Start: {number} ({list_first(names, _MAX_NAMED)}). {verb} to the next run."
