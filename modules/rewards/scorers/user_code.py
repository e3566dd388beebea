"""A user-defined reward: a function in a Python file, which runs only if exactly this file was approved."""

from __future__ import annotations

from modules.rewards.spec import RewardSpec
from modules.rewards.user_code_file import split_reference

SPEC = RewardSpec(
    "user_code",
    "Custom function",
    "A function in your own Python file. It runs as a program with your permissions, and only if you approved the "
    "file. It takes images (B, 3, H, W) in [0, 1] and prompts, and returns a tensor with one number per image. With "
    "`name.is_differentiable = False` below it, it may use any library and return a list, with None for an image "
    "without a score; methods that need the gradient of the reward refuse it.",
    "modules.rewards.models.user_code:make",
    "depends on the function",
    checks={"file": split_reference},
    runs_code=True,
)
