"""The queue as text: its state, and the cells and details of an item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modules.config.records import top_records
from modules.config.schema import Config
from modules.config.sections.training import Training
from modules.families.registry import FAMILIES
from modules.objectives.registry import METHODS
from modules.system.problem import count
from trainer.run_queue.items import Item
from ui.features.queue.model import QueueControl
from ui.forms.changes import changes
from ui.loop.wording import format_rate, plan_lines

_MAX_CHANGES, _MAX_NAMES = 3, 4


def names_of(items: Sequence[Item]) -> list[str]:
    """Return the names of the items; the second of a name is "name (2)"."""
    times: Counter[str] = Counter()
    names = []
    for item in items:
        times[item.name] += 1
        names.append(item.name if times[item.name] == 1 else f"{item.name} ({times[item.name]})")
    return names


def describe_training(item: Item) -> str:
    """Return the training of an item: the family, the target and the method, from its settings as they are stored."""
    training = _section(item, "training")
    family, name = FAMILIES.get(_name(_section(item, "model").get("family"))), _name(training.get("method"))
    target = top_records(Config)["training.trains"].choices.get(str(training.get("trains")), "")
    labels = [family.label if family else "", target, METHODS[name].label if name in METHODS else ""]
    return ", ".join(word for word in labels if word)


def _name(choice: object) -> str:
    """Return the name of a choice with settings of its own, as a file holds it: the name alone, or an object."""
    return str(choice.get("name")) if isinstance(choice, dict) else str(choice)


def describe_length(item: Item) -> str:
    """Return how long an item trains: its epochs, and the images of a step."""
    training = _section(item, "training")
    epochs, batch, steps = (
        value if isinstance(value := training.get(name), int) else Training.model_fields[name].default
        for name in ("epochs", "batch_size", "accumulation_steps")
    )
    return f"{count(epochs, 'epoch')}, batch {batch}{f' x {steps}' if steps > 1 else ''}"


def describe_difference(item: Item, items: Sequence[Item]) -> str:
    """Return how an item's settings differ from the item of the same name before it; empty if there is no such item."""
    same = [(other, name) for other, name in zip(items, names_of(items), strict=True) if other.name == item.name]
    place = next((n for n, (other, _) in enumerate(same) if other.number == item.number), 0)
    if place == 0:
        return ""
    before, name = same[place - 1]
    entries = changes(item.config, before.config)
    if not entries:
        return f"Same settings as {name}."
    differences = "; ".join(f"{c.place}: {c.before} → {c.now}" for c in entries[:_MAX_CHANGES])
    more = f"; {count(len(entries) - _MAX_CHANGES, 'more setting')}" if len(entries) > _MAX_CHANGES else ""
    return f"Differs from {name}: {differences}{more}."


def detail_lines(item: Item) -> list[str]:
    """Return the settings of an item and the plan of its run, one fact per line."""
    config = item.config
    training, record = config.training, top_records(Config)["training.optimizer"]
    optimizer = record.choices.get(training.optimizer.name, training.optimizer.name)
    names = [c.name or Path(c.path).name or "no folder" for c in config.concepts if c.enabled]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return [
        describe_training(item),
        describe_length(item),
        f"Model: {config.model.base_model or 'none'}",
        f"Concepts: {', '.join(names[:_MAX_NAMES])}{more}" if names else "No concepts",
        f"{optimizer}, learning rate {format_rate(training.learning_rate)}",
        *plan_lines(config),
    ]


def _section(item: Item, name: str) -> Mapping[str, Any]:
    section = item.settings.get(name)
    return section if isinstance(section, dict) else {}


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
