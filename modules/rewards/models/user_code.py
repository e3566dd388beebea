"""A user-defined reward: the function of a Python file. It runs in a process of its own (`user_process.py`)."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from modules.rewards.user_code_file import hash_of_code
from modules.system.devices import CPU, move
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason


@dataclass(frozen=True, slots=True)
class UserCode:
    """Calls `function(images, prompts)`, which returns one number per image; NaN or None for an image without a score.

    It counts as differentiable unless the function has an attribute `is_differentiable` that is false. Such a function
    gets the images without gradient and in the CPU's memory, and may return a list or a numpy array.
    """

    function: Callable[[torch.Tensor, Sequence[str]], Any]
    where: str
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,). Raises DarkroomError where the function fails or returns something else."""
        if not self.is_differentiable:
            scores = self._call_function(move(images_B3PP.detach(), CPU), prompts)
            return images_B3PP.new_tensor(self._numbers(scores, len(images_B3PP)))
        scores_B = self._call_function(images_B3PP, prompts)
        expected = (len(images_B3PP),)
        if not isinstance(scores_B, torch.Tensor) or tuple(scores_B.shape) != expected:
            given = tuple(scores_B.shape) if isinstance(scores_B, torch.Tensor) else "something that is not a tensor"
            raise DarkroomError(
                f"The reward {self.where} returned {given}; expected a tensor of shape {expected}.",
                advice="Return one number per image, as a tensor. A function that cannot do this must be marked as "
                "not differentiable: `name_of_the_function.is_differentiable = False`, below it in the file.",
            )
        if images_B3PP.requires_grad and not scores_B.requires_grad:
            raise DarkroomError(
                f"The scores of the reward {self.where} cannot be traced back to the images, which training needs.",
                advice="Compute the scores with torch functions only, without numpy, .item() or no_grad.",
            )
        return scores_B

    def _call_function(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> Any:
        try:
            return self.function(images_B3PP, list(prompts))
        except torch.OutOfMemoryError:
            raise  # out of memory is not the function's error: the caller gives advice on saving memory
        except (Exception, SystemExit) as error:
            raise DarkroomError(
                f"The reward {self.where} failed{_place_of(error)}: {_reason_of(error)}.", advice="Fix the function."
            ) from error

    def _numbers(self, scores: Any, count: int) -> list[float]:
        """Convert the function's result, a list, an array or a tensor, to a list of `count` numbers."""
        if isinstance(scores, torch.Tensor):
            scores = scores.detach()
        try:
            numbers = [math.nan if score is None else float(score) for score in scores]
        except (TypeError, ValueError) as error:
            raise DarkroomError(
                f"The reward {self.where} returned something other than one number per image.",
                advice="Return a list or an array with one number per image, None for an image without a score.",
            ) from error
        if len(numbers) != count:
            raise DarkroomError(
                f"The reward {self.where} returned {len(numbers)} numbers for {count} images.",
                advice="Return a list or an array with one number per image, None for an image without a score.",
            )
        return numbers


def _reason_of(error: BaseException) -> str:
    return "it ended the program" if isinstance(error, SystemExit) else plain_reason(error)


def _place_of(error: BaseException) -> str:
    """Return the line of the user's code that failed, as part of a sentence; empty where none is known."""
    if isinstance(error, SyntaxError):
        return f" in line {error.lineno}" if error.lineno else ""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename not in (__file__, "<string>")]
    return f" in line {lines[0]}" if lines else ""


def load_user_reward(code: bytes, path: Path, function: str) -> UserCode:
    """Run the code of a Python file, which was approved, and return its function as a reward.

    Raises DarkroomError where the code fails, or has no such function.
    """
    module = ModuleType(f"darkroom_user_reward_{hash_of_code(code)[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise DarkroomError(
            f"The reward function's file {path} failed{_place_of(error)}: {_reason_of(error)}.",
            advice="Fix the file.",
        ) from error
    reward = getattr(module, function, None)
    if not callable(reward):
        raise DarkroomError(f"The file {path} has no function {function}.", advice="Correct the name after the colon.")
    return UserCode(reward, f"{function} of {path.name}", bool(getattr(reward, "is_differentiable", True)))
