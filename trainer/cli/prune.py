"""cache --prune: shows the cache entries that are not in use, and removes them if that is confirmed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from modules.config.schema import Config
from modules.system.errors import DarkroomError
from modules.system.problem import count
from trainer.launch import import_engine


def prune(configs: Sequence[Config], *, names: Sequence[str], is_confirmed: bool) -> int:
    """Show the entries of the first config's cache folder that none of the configs uses, and remove them if confirmed.

    `names` are those of the configs in messages. On a terminal the user is asked; elsewhere nothing is removed unless
    `is_confirmed`.
    """
    if configs[0].data.cache_location == "memory":
        raise DarkroomError(
            "The caches of this config are in memory, so there are no entries to remove.",
            advice="Set data.cache_location to disk to remove those of the cache folder.",
        )
    import_engine(beside_window=False)
    from trainer.run.prune import unused_by

    unused = unused_by(configs, names=names)
    folder, used_by = configs[0].general.cache_dir, "this config" if len(configs) == 1 else "these configs"
    sys.stdout.write(f"In use by {used_by}, in {folder}: {unused.used_summary}.\n")
    if not unused.entries:
        sys.stdout.write("There are no other entries.\n")
        return 0
    sys.stdout.write(f"Not in use: {unused.summary}.\n")
    if len(configs) == 1:
        sys.stdout.write("Other configs may use them; --keep-for CONFIG keeps the entries of another config.\n")
    if not is_confirmed and not _confirm():
        sys.stdout.write("Nothing was removed. --yes removes them.\n")
        return 0
    removed = unused.remove()
    sys.stdout.write(f"{count(removed, 'entry was', 'entries were')} removed.\n")
    return 0


def _confirm() -> bool:
    if not sys.stdin.isatty():
        return False
    return input("Remove them? [y/N] ").strip().lower() in ("y", "yes")
