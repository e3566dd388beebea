"""A reward of the user's own: a function in a Python file, run only where that very file was approved."""

from __future__ import annotations

from modules.rewards.spec import RewardSpec
from modules.rewards.user_code_file import split_reference

SPEC = RewardSpec(
    "user_code",
    "Your own function",
    "A function in a Python file of yours. It runs as a program with your rights: only files that you approved "
    "are run.",
    "modules.rewards.models.user_code:make",
    "whatever the function returns",
    checks={"file": split_reference},
    runs_code=True,
)
