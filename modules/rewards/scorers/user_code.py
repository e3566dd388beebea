"""A user-defined reward: a function in a Python file, which runs only if exactly this file was approved."""

from __future__ import annotations

from modules.rewards.spec import RewardSpec
from modules.rewards.user_code_file import split_reference

SPEC = RewardSpec(
    "user_code",
    "Custom function",
    "A function in your own Python file. It runs as a program with your permissions, and only if you approved the "
    "file.",
    "modules.rewards.models.user_code:make",
    "depends on the function",
    checks={"file": split_reference},
    runs_code=True,
)
