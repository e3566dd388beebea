"""What a run of a config does beside training, and where its files go, in words."""

from __future__ import annotations

from modules.config.schema import Config
from modules.settings.every import Every
from modules.system.paths import as_config_path, from_root
from modules.system.problem import count


def plan_lines(config: Config) -> list[str]:
    """Return when a run samples, validates and saves, and where its files go, one fact per line."""
    sampling, backup = config.sampling, config.backup
    prompts = count(len(sampling.prompts), "prompt")
    if sampling.prompts_file:
        prompts = f"prompts of {sampling.prompts_file}"
    if not sampling.prompts and not sampling.prompts_file:
        lines = ["No samples: there are no prompts."]
    else:
        lines = [_line(f"Samples of {prompts}", sampling.every, at_start=sampling.at_start, at_end=sampling.at_end)]
    lines.append(_line("Validation", config.validation.every))
    lines.append(_line("Backups", backup.every, at_end=backup.at_end))
    if not backup.save_every.is_never:
        lines.append(_line("Models beside the result", backup.save_every))
    lines.append(f"Result: {config.output.destination}")
    lines.append(f"All else: a new folder in {as_config_path(from_root(config.general.workspace_dir) / 'runs')}")
    return lines


def _line(what: str, every: Every, *, at_start: bool = False, at_end: bool = False) -> str:
    when = [str(every)] if not every.is_never else []
    when += ["at the start"] * at_start + ["at the end"] * at_end
    if not when:
        return f"{what}: never"
    return f"{what}: {', '.join(when[:-1])} and {when[-1]}" if len(when) > 1 else f"{what}: {when[0]}"
