"""Names in configs that become names of files: a config may come from anybody, so they lead to no other folder."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.system.paths import reason_if_no_name
from modules.system.problem import Problem, shown


def file_names(config: Config) -> Iterator[Problem]:
    """Yield the names of files that are paths, or that some system does not accept."""
    prefix = config.backup.save_prefix
    if prefix and (reason := reason_if_no_name(prefix)):
        yield Problem(
            "backup.save_prefix",
            f"The prefix of saved files, {shown(prefix)}, is not valid in a file name: {reason}.",
            advice="Use letters, digits, spaces and . _ - only, or leave it empty. Saves are in the run's own folder.",
        )
