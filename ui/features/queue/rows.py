"""The queue as text: its state, and the cells and details of an item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modules.config.records import top_records
from modules.config.schema import Config
from modules.config.sections.training import Training
from modules.families.registry import FAMILIES
from modules.objectives.registry import METHODS
from modules.system.problem import count, list_first
from trainer.run_folder.differences import PLACES
from trainer.run_queue.items import Item
from trainer.wording import format_rate
from ui.features.queue.model import QueueControl
from ui.forms.changes import changes
from ui.loop.wording import plan_lines

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


@dataclass(frozen=True, slots=True)
class Difference:
    """How an item differs from the one before it: as the cell of a row, and line by line."""

    cell: str = ""
    lines: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The heading and the first lines, for places without room for all."""
        heading, *entries = self.lines or ("",)
        more = f"; {count(len(entries) - _MAX_CHANGES, 'more setting')}" if len(entries) > _MAX_CHANGES else ""
        return f"{heading} {'; '.join(entries[:_MAX_CHANGES])}{more}".strip()


class Differences:
    """How the items differ from the ones before them. Reading configs takes long, so the differences are kept."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, Difference]] = {}

    def known_differences(self, items: Sequence[Item]) -> list[Difference | None]:
        """Return the difference of each item; None for those that have changed since they were last compared."""
        found = (self._known.get(item.number, (None, None)) for _, _, item in _pairs(items))
        keys = (_key(*pair) for pair in _pairs(items))
        later = (difference if known == key else None for (known, difference), key in zip(found, keys, strict=True))
        return [Difference(), *later] if items else []

    def compare(self, items: Sequence[Item]) -> None:
        """Compare the items of which the difference is not known: for a background thread."""
        for pair, difference in zip(_pairs(items), self.known_differences(items)[1:], strict=True):
            if difference is None:
                self._known[pair[2].number] = (_key(*pair), _difference(*pair))


def _pairs(items: Sequence[Item]) -> list[tuple[str, Item, Item]]:
    """Return each item but the first, behind the one before it and that one's name."""
    return list(zip(names_of(items), items, items[1:], strict=False))


def _key(name: str, before: Item, item: Item) -> object:
    return name, before.settings, item.settings


def _difference(name: str, before: Item, item: Item) -> Difference:
    entries = sorted(changes(item.config, before.config), key=lambda change: change.path in PLACES)  # which matter less
    if not entries:
        return Difference("the same settings", (f"The same settings as {name}",))
    cell = ", ".join(f"{c.label} {c.now}" for c in entries[:_MAX_CHANGES])
    more = f" and {count(len(entries) - _MAX_CHANGES, 'more setting')}" if len(entries) > _MAX_CHANGES else ""
    return Difference(
        f"{cell}{more}",
        (f"Differs from {name}:", *(f"{change.place}: {change.before} → {change.now}" for change in entries)),
    )


def detail_lines(item: Item) -> list[str]:
    """Return the settings of an item and the plan of its run, one fact per line."""
    config = item.config
    training, record = config.training, top_records(Config)["training.optimizer"]
    optimizer = record.choices.get(training.optimizer.name, training.optimizer.name)
    names = [c.label for c in config.concepts if c.enabled]
    return [
        describe_training(item),
        describe_length(item),
        f"Model: {config.model.base_model or 'none'}",
        f"Concepts: {list_first(names, _MAX_NAMES)}" if names else "No concepts",
        f"{optimizer}, learning rate {format_rate(training.learning_rate)}",
        *plan_lines(config),
    ]


def _section(item: Item, name: str) -> Mapping[str, Any]:
    section = item.settings.get(name)
    return section if isinstance(section, dict) else {}


def status_line(control: QueueControl) -> str:
    """Return who runs the queue and what is left, as a sentence."""
    items = control.queue.items
    num_open = sum(item.is_open for item in items)
    left = f"{count(num_open, 'run')} left" if num_open else "nothing left"
    if control.problem:
        return control.problem
    if control.current is not None:
        after = ", then the queue stops" if control.is_last else f", {left}" if num_open else ", the last one"
        names = {item.number: name for name, item in zip(names_of(items), items, strict=True)}
        return f"Training {names.get(control.current.number, control.current.name)}{after}."
    if control.is_running:
        return f"The queue starts when the current run has ended: {left}."
    if control.runner is not None:
        if control.is_last:
            return f"The queue runs outside this window, and stops after this run: {left}."
        return f"The queue runs outside this window: {left}. Stop on the Run page also stops it."
    return f"{left[0].upper()}{left[1:]}." if items else ""
