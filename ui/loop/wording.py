"""Measurements, previews and plans of a run, durations and numbers as text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from modules.config.schema import Config
from modules.settings.every import Every
from modules.system.paths import as_config_path, from_root
from modules.system.problem import about, count, describe_data, format_size
from trainer.run_status import RunStatus
from trainer.wording import describe_validation, format_loss, reward_label

if TYPE_CHECKING:  # the window needs these classes when a run has begun
    from trainer.events import DownloadProgress, RewardMeasured, RunFailed, ValidationFinished
    from trainer.preflight import Preview

_MAX_BUCKETS = 6

STATUS_COLOURS: Mapping[RunStatus, str] = {
    RunStatus.RUNNING: "good",
    RunStatus.INTERRUPTED: "warning",
    RunStatus.CRASHED: "warning",
    RunStatus.FAILED: "error",
}


def validation_line(event: ValidationFinished) -> str:
    """Return the newest validation and the best one as a line."""
    return f"Validation: {describe_validation(event)}"


def reward_rows(event: RewardMeasured) -> list[tuple[str, str]]:
    """Return the reward of each model by its label; the sum comes first if several are trained on.

    The diversity and the saturation of the images come last, if they were measured.
    """
    rows = [(reward_label(name), format_loss(value)) for name, value in event.by_reward_model.items()]
    followed = [name for name in event.by_reward_model if name != event.held_out_by]
    rows = [("training reward", format_loss(event.followed)), *rows] if len(followed) > 1 else rows
    of_images = (("diversity", event.diversity), ("saturation", event.saturation))
    return [*rows, *((name, format_loss(value)) for name, value in of_images if value is not None)]


def concept_rows(event: ValidationFinished) -> list[tuple[str, str]]:
    """Return the validation loss: overall, weighted if different, and by concept."""
    rows = [("overall", format_loss(event.loss))]
    weighted = format_loss(event.weighted_loss)
    if event.weighted_loss is not None and weighted != rows[0][1]:
        rows.append(("weighted", weighted))
    return [*rows, *((name, format_loss(value)) for name, value in event.by_concept.items())]


def timestep_rows(event: ValidationFinished) -> list[tuple[str, str]]:
    """Return the validation loss by timestep."""
    return [(name, format_loss(value)) for name, value in event.by_timestep.items()]


def describe_continuation(failed: RunFailed, run_dir: str, remote: str = "") -> str:
    """Return how a failed run can continue, with the place: from its newest backup, or from the beginning.

    `remote` is the machine that it was trained on, if that is another one.
    """
    if remote:
        return f"Its backups are on {remote}: More in the run history resumes it there."
    if failed.backup_path:
        return f"The newest backup is {failed.backup_path}: Resume continues from it."
    if not run_dir:
        return ""
    return f"This run has no backup, so it can only begin again, with Start. Its folder is {run_dir}."


def preview_lines(preview: Preview) -> list[str]:
    """Return the preview of a run, one fact per line."""
    model = [preview.model] if preview.model else []
    if not preview.num_images and not preview.num_prompts:
        return [*model, "No training images yet."]
    left = f", {_steps_left(preview):,} of them left" if preview.done_steps else ""
    steps = f"{count(preview.total_steps, 'step')} in total{left}"
    lines = [*model, f"{describe_data(preview.num_images, preview.num_prompts, preview.num_pairs)}, {steps}"]
    if preview.num_validation_images:
        lines.append(f"{count(preview.num_validation_images, 'validation image')}")
    if preview.buckets:
        sizes = ", ".join(f"{size} ({number:,})" for size, number in preview.buckets[:_MAX_BUCKETS])
        more = len(preview.buckets) - _MAX_BUCKETS
        lines.append(f"Sizes: {sizes}{f' and {more} more' if more > 0 else ''}")
    if preview.num_without_caption:
        lines.append(f"{count(preview.num_without_caption, 'image')} without a caption")
    if preview.skipped:
        lines.append(f"{count(len(preview.skipped), 'file')} skipped")
    lines += preview.reward_models
    lines += map(str, preview.trained)
    if preview.passes:
        lines.append(preview.passes)
    if preview.memory:
        lines.append(preview.memory)
    return lines


def _steps_left(preview: Preview) -> int:
    return max(0, preview.total_steps - preview.done_steps)


def start_figures(preview: Preview) -> list[tuple[str, str, bool]]:
    """Return the figures of a run at a glance, each with its label and whether it is too large: steps, time, memory.

    Steps and time are those that are left.
    """
    label = "Steps left" if preview.done_steps else "Steps"
    figures = [(label, f"{_steps_left(preview):,}", False)] if preview.total_steps else []
    needs = preview.figures
    if needs is None or not figures:
        return figures
    figures.append(("Time, roughly", about(needs.seconds), False))
    where = "Memory of the card" if needs.on_gpu else "Memory"
    used = format_size(needs.memory_bytes)
    if needs.device_bytes is None:
        return [*figures, (where, used, False)]
    has = f"{used.removesuffix(' GB')} of {needs.device_bytes / 1e9:.0f} GB"
    return [*figures, (where, has, needs.memory_bytes > needs.device_bytes)]


def format_download(progress: DownloadProgress, what: str) -> str:
    """Return the progress of a download: numbers first, because a long name may be cut off."""
    share = progress.done_mb / progress.total_mb if progress.total_mb > 0 else 0.0
    numbers = f"{share:.0%}, {progress.done_mb:,.0f} of {progress.total_mb:,.0f} MB"
    return f"{numbers} of {what}" if what else numbers


def format_duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: 45 s, 4 min 10 s, 2 h 5 min, 3 d 4 h; a dash for None."""
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, name), (next_size, next_name) in pairwise(units):
        if whole >= size:
            rest = (whole % size) // next_size
            return f"{whole // size} {name}" + (f" {rest} {next_name}" if rest else "")
    return f"{whole} s"


def cost_text(price_per_hour: float, seconds: float | None) -> str:
    """Return the cost of a machine for a time, in the currency of its price; empty if either is unknown."""
    return f"{price_per_hour * seconds / 3600:,.2f}" if price_per_hour and seconds else ""


def plan_lines(config: Config, on_destination: str = "") -> list[str]:
    """Return when a run samples, validates and saves, and where its files go, one fact per line.

    `on_destination` is a sentence about the destination, if it is taken.
    """
    sampling, backup = config.sampling, config.backup
    prompts = count(len(sampling.prompts), "prompt")
    if sampling.prompts_file:
        prompts = f"prompts of {sampling.prompts_file}"
    if not sampling.prompts and not sampling.prompts_file:
        lines = ["No samples: there are no prompts."]
    else:
        lines = [
            schedule_line(f"Samples of {prompts}", sampling.every, at_start=sampling.at_start, at_end=sampling.at_end)
        ]
    lines.append(schedule_line("Validation", config.validation.every))
    lines.append(schedule_line("Backups", backup.every, at_end=backup.at_end))
    if not backup.save_every.is_never:
        lines.append(schedule_line("Models in addition to the result", backup.save_every))
    lines.append(f"Result: {on_destination or config.output.destination}")
    lines.append(f"All else: a new folder in {as_config_path(from_root(config.general.workspace_dir) / 'runs')}")
    return lines


def schedule_line(what: str, every: Every, *, at_start: bool = False, at_end: bool = False) -> str:
    """Return when a run does something: Samples: every 2 epochs, at the start and at the end."""
    when = [str(every)] if not every.is_never else []
    when += ["at the start"] * at_start + ["at the end"] * at_end
    if not when:
        return f"{what}: never"
    return f"{what}: {', '.join(when[:-1])} and {when[-1]}" if len(when) > 1 else f"{what}: {when[0]}"
