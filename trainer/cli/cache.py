"""cache: fills the caches of a config, or removes the entries that it does not use."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from modules.config.schema import Config
from modules.config.usage import data_in_use
from modules.rewards.user_code_file import approved_hashes
from modules.settings.field import Setting
from modules.system.errors import DarkroomError
from modules.system.problem import count
from trainer.cli.jobs import job_on_terminal
from trainer.cli.options import settings_verb
from trainer.cli.runs import RunSettings, report_problems, run
from trainer.jobs.check import plan_lines
from trainer.jobs.config import ConfigSettings, allowed_code, read_config
from trainer.jobs.spec import Argument
from trainer.launch import RunRequest, import_engine
from trainer.preflight import check


class CacheSettings(ConfigSettings):
    """The config whose caches are filled or pruned."""

    run: RunSettings = RunSettings()
    images: Annotated[bool, Setting("Images", "List bucket, scale and crop of every image.")] = False
    prune: Annotated[
        bool, Setting("Prune", "List the entries that the config does not use, and remove them if confirmed.")
    ] = False
    yes: Annotated[bool, Setting("Confirmed", "With --prune: remove them without asking.")] = False
    keep_for: Annotated[
        tuple[str, ...],
        Setting("Keep for", "With --prune: also keep the entries of other configs."),
        Argument(metavar="CONFIG", takes_several=True),
    ] = ()


def _cache(settings: CacheSettings) -> int:
    loaded = settings.load()
    report_problems(loaded.problems)
    if settings.prune and settings.run.json_lines:
        raise DarkroomError("--prune prints no JSON lines.", advice="Leave one of --prune and --json-lines out.")
    if settings.prune:
        others = [read_config(name).config for name in settings.keep_for]
        names = [settings.config, *settings.keep_for]
        return _prune([loaded.config, *others], names=names, is_confirmed=settings.yes)
    allowed = allowed_code(loaded.config, settings.run)
    with job_on_terminal() as job:
        report = check(loaded.config, approved_code=approved_hashes() | allowed, progress=job.progress)
    if report.datasets is not None and not settings.run.json_lines:
        is_cached, epochs = data_in_use(loaded.config).latent_cache, loaded.config.training.epochs
        for line in plan_lines(report.datasets, is_cached=is_cached, epochs=epochs, every_image=settings.images):
            sys.stdout.write(f"{line}\n")
    request = RunRequest(loaded.config, kind="cache", datasets=report.datasets, in_window=False, allowed_code=allowed)
    return run(request, settings.run)


def _prune(configs: Sequence[Config], *, names: Sequence[str], is_confirmed: bool) -> int:
    """Show the entries of the first config's cache folder that none of the configs uses, and remove them if confirmed.

    `names` are the configs' names for messages. On a terminal the user is asked; elsewhere nothing is removed unless
    `is_confirmed`.
    """
    if configs[0].data.cache_location == "memory":
        raise DarkroomError(
            "The caches of this config are in memory, so there are no entries to remove.",
            advice="Set data.cache_location to disk to remove the entries of the cache folder.",
        )
    import_engine(in_window=False)
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


CACHE = settings_verb("fill the caches of a config and stop", CacheSettings, _cache)
