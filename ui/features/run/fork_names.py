"""The name of a fork: that of its result, so that it does not replace the result of the run it comes from. No Tk."""

from __future__ import annotations

from modules.config.schema import Config
from modules.settings.edit import replace_value
from modules.system.paths import safe_name


def proposed_name(config: Config) -> str:
    """Return the name of the result with the first number that is free: zog-2 for zog."""
    from trainer.run_folder.destination import stem_of, with_free_number  # not needed before the window is drawn

    return stem_of(with_free_number(config).output.destination)


def named(config: Config, name: str) -> Config:
    """Return the config with another name of the result, in the same folder and of the same kind."""
    from trainer.run_folder.destination import PATH, with_stem

    clean = safe_name(name) or proposed_name(config)
    return replace_value(config, PATH, with_stem(config.output.destination, clean))
