"""Runs in words: the cells of the list, the facts of a run, and what a deletion moves. No Tk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from modules.families.registry import FAMILIES
from modules.objectives.registry import METHODS
from modules.system.paths import as_config_path
from modules.system.problem import count
from trainer.run_folder.records import RunRecord
from trainer.run_folder.trash import Contents
from ui.loop.wording import duration, loss

ENDINGS = {
    "running": "Running",
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Failed",
    "crashed": "Crashed",
}
_PARTS = {"backup": "backups", "samples": "samples", "save": "saved models", "tensorboard": "TensorBoard logs"}


def row_of(record: RunRecord) -> tuple[str, ...]:
    """Return the cells of a run: start, result, ending, steps, best validation, length, size."""
    return (
        when(record),
        model_name(record),
        ENDINGS[record.ending],
        f"{record.step:,} of {record.total_steps:,}" if record.total_steps else "–",
        loss(record.best_loss),
        duration(record.seconds) if record.seconds else "–",
        size_words(record.size_bytes),
    )


def when(record: RunRecord) -> str:
    """Return when a run was started; the name of its folder if that is not a date."""
    return f"{record.started:%Y-%m-%d %H:%M}" if record.started else record.name


def model_name(record: RunRecord) -> str:
    """Return the name of the result's file, or of the base model."""
    name = Path(record.destination or record.base_model).name
    return Path(name).stem if name else record.name


def fact_lines(record: RunRecord) -> list[str]:
    """Return what is known about a run, one fact per line."""
    ending = ENDINGS[record.ending]
    lines = [record.message if record.message.startswith(ending) else f"{ending}. {record.message}".strip()]
    if record.total_steps:
        took = f" in {duration(record.seconds)}" if record.seconds else ""
        lines.append(f"Step {record.step:,} of {record.total_steps:,}{took}")
    if record.facts is not None:
        family, method = FAMILIES.get(record.facts.family), METHODS.get(record.facts.method)
        labels = [family.label if family else record.facts.family, method.label if method else record.facts.method]
        lines.append(f"{', '.join(labels)}; {count(record.facts.num_images, 'image')} on {record.facts.device}")
    if record.base_model:
        lines.append(f"Model: {record.base_model}")
    if record.best_loss is not None and record.best_step is not None:
        lines.append(f"Best validation: {loss(record.best_loss)} at step {record.best_step:,}")
    if record.origin is not None:
        how = "the weights of " if record.origin.is_weights_only else ""
        lines.append(f"Fork of {how}{record.origin.run_dir.name}, step {record.origin.step:,}")
    samples = f", {count(record.num_samples, 'sample')}" if record.num_samples else ""
    lines.append(f"{size_words(record.size_bytes)}{samples}, {count(len(record.backups), 'backup')}")
    lines += [f"Output: {_place_of(path, record)}" for path in record.outputs[-3:]]
    lines.append(f"Workspace: {as_config_path(record.workspace)}")
    return lines


def _place_of(path: Path, record: RunRecord) -> str:
    """Return the path of an output: inside the run's folder relative to it."""
    is_inside = path.is_relative_to(record.run_dir)
    return path.relative_to(record.run_dir).as_posix() if is_inside else as_config_path(path)


def size_words(size_bytes: int) -> str:
    """Return a size in its unit: 12 kB, 3.4 MB, 1.2 GB."""
    for size, unit, digits in ((1e9, "GB", 1), (1e6, "MB", 1), (1e3, "kB", 0)):
        if size_bytes >= size:
            return f"{size_bytes / size:,.{digits}f} {unit}"
    return f"{size_bytes} bytes"


def deletion_words(contents: Sequence[Contents], outputs: Sequence[Path]) -> str:
    """Return what a deletion moves to the trash, and what stays."""
    total, num_files = sum(c.size_bytes for c in contents), sum(c.num_files for c in contents)
    lines = [f"{size_words(total)} in {count(num_files, 'file')}:"]
    for each in contents[:8]:
        parts = ", ".join(f"{_PARTS.get(name, 'the rest')} {size_words(size)}" for name, size in each.parts)
        lines.append(f"  {each.run_dir.name}: {parts or 'empty'}")
    if len(contents) > 8:
        lines.append(f"  and {count(len(contents) - 8, 'more run')}")
    lines.append("They go to the trash of their workspace, from which they can be brought back until it is emptied.")
    stay = [str(path) for path in outputs if path.exists() and not _is_in(path, contents)]
    if stay:
        lines.append(f"Exported models stay: {', '.join(stay[:4])}{' and more' if len(stay) > 4 else ''}.")
    return "\n".join(lines)


def _is_in(path: Path, contents: Sequence[Contents]) -> bool:
    return any(path.is_relative_to(each.run_dir) for each in contents)
