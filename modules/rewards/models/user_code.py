"""A user-defined reward: a function in a Python file, which runs only if exactly this file was approved."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.settings import Scorer
from modules.rewards.user_code_file import hash_of_code, read_code, refusal_of, split_reference
from modules.system.errors import DarkroomError


@dataclass(frozen=True, slots=True)
class UserCode:
    """Calls `function(images, prompts)`, which returns one number per image, NaN for an image without a score.

    It counts as differentiable unless the function has an attribute `is_differentiable` that is false.
    """

    function: Callable[[torch.Tensor, Sequence[str]], Any]
    where: str
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,). Raises DarkroomError where the function fails or returns something else."""
        try:
            rewards_B = self.function(images_B3PP, prompts)
        except torch.OutOfMemoryError:
            raise  # out of memory is not the function's error: the caller gives advice on saving memory
        except Exception as error:
            raise DarkroomError(
                f"The reward {self.where} failed: {type(error).__name__}: {error}", advice="Fix the function."
            ) from error
        expected = (len(images_B3PP),)
        if not isinstance(rewards_B, torch.Tensor) or tuple(rewards_B.shape) != expected:
            given = tuple(rewards_B.shape) if isinstance(rewards_B, torch.Tensor) else type(rewards_B).__name__
            raise DarkroomError(
                f"The reward {self.where} returned {given}; expected a tensor of shape {expected}.",
                advice="Return one number per image, as a tensor.",
            )
        if self.is_differentiable and images_B3PP.requires_grad and not rewards_B.requires_grad:
            raise DarkroomError(
                f"The reward {self.where} is not differentiable: its scores have no autograd graph to the images.",
                advice="Compute the scores with torch functions only, without numpy, .item() or no_grad.",
            )
        return rewards_B


def load_user_reward(path: Path, function: str, approved_hashes: Collection[str]) -> Reward:
    """Run a Python file and return its function as a reward.

    Runs exactly the bytes whose hash is approved. Raises DarkroomError where the file is not approved, fails, or has no
    such function.
    """
    code = read_code(path)
    digest = hash_of_code(code)
    if digest not in approved_hashes:
        raise refusal_of(path, function)
    module = ModuleType(f"darkroom_user_reward_{digest[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise DarkroomError(
            f"The reward function's file {path} failed: {type(error).__name__}: {error}", advice="Fix the file."
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        raise DarkroomError(f"The file {path} has no function {function}.", advice="Correct the name after the colon.")
    return UserCode(found, f"{function} of {path.name}", bool(getattr(found, "is_differentiable", True)))


def make(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward function that the settings name. Raises DarkroomError as `load_user_reward` does."""
    path, function = split_reference(scorer.file)
    return load_user_reward(path, function, context.approved_hashes)
