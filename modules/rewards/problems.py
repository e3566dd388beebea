"""Checks the reward models' files before a run; only names and hashes are checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from modules.formats.published_files import problem_of_file
from modules.rewards.in_use import scorers_in_use
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer, wanted_files
from modules.rewards.user_code_file import hash_of, refusal_of, split_reference
from modules.system.errors import DarkroomError
from modules.system.problem import Problem


def problems_of_rewards(
    scorers: Sequence[Scorer],
    *,
    held_out_reward: str = "none",
    offline: bool,
    hub_cache_dir: str = "",
    approved_hashes: Collection[str] = (),
) -> Iterator[Problem]:
    """Yield missing files as errors, coming downloads as info, and user code that will run as a warning.

    `approved_hashes` are the hashes of the code files that may run. Errors keep a run from starting.
    """
    for scorer in scorers_in_use(scorers, held_out_reward).all:
        yield from _packages(scorer, scorers)
        path = f"reward.models.{scorers.index(scorer)}" if scorer in scorers else "training.method"
        if REWARDS[scorer.kind].runs_code:
            yield from _code(path, scorer, approved_hashes)
        else:
            yield from _files(path, scorer, offline=offline, hub_cache_dir=hub_cache_dir)


def _packages(scorer: Scorer, scorers: Sequence[Scorer]) -> Iterator[Problem]:
    """Yield the missing packages of a reward model, each with the command that installs it. None is imported."""
    spec = REWARDS[scorer.kind]
    where = f"reward.models.{scorers.index(scorer)}.kind" if scorer in scorers else "training.method.held_out_reward"
    for package in spec.packages:
        if not package.is_installed:
            message = f"{spec.label} needs the package {package.name}, which is not installed."
            advice = f"{package.install}, or choose another reward model."
            yield Problem(where, message, advice=advice, remedy="packages")


def _files(path: str, scorer: Scorer, *, offline: bool, hub_cache_dir: str) -> Iterator[Problem]:
    label = REWARDS[scorer.kind].label
    for wanted in wanted_files(scorer):
        where = f"{path}.{wanted.published.slot}" if path.startswith("reward.") else f"{path}.held_out_reward"
        problem = problem_of_file(where, wanted, needed_by=label, offline=offline, hub_cache_dir=hub_cache_dir)
        if problem is not None:
            yield problem


def _code(path: str, scorer: Scorer, approved_hashes: Collection[str]) -> Iterator[Problem]:
    where = f"{path}.file" if path.startswith("reward.") else f"{path}.held_out_reward"
    try:
        file, function = split_reference(scorer.file)
        if hash_of(file) not in approved_hashes:
            raise refusal_of(file, function)
    except DarkroomError as error:
        yield Problem(where, error.message, advice=error.advice)
        return
    yield Problem(
        where,
        f"The reward {function} of {file} runs as a program with your permissions.",
        "warning",
        "The file is approved in its current form. Files that it imports are not checked.",
    )
