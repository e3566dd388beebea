"""A user-defined reward in a process of its own, with a time limit: its memory is apart, and a crash or an endless loop
in it does not end or hold up the run.

The process gets the very bytes that were approved. Images and scores are sent as bytes; a differentiable function keeps
its graph there until the gradient of its scores arrives.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from modules.rewards.models.user_child import Message, as_bytes, as_tensor, receive, send
from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.settings import Scorer
from modules.rewards.user_code_file import approved_code, split_reference
from modules.system.devices import Device
from modules.system.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT
from modules.system.process_setup import own_process_group
from modules.system.waiting import wait_for

_LOADING_SECONDS = 900.0  # of the file, which may load a model itself
_ENDING_SECONDS = 5.0
_CHILD = "modules.rewards.models.user_child"


class UserProcess:
    """A running process with a user's function; `where` names the function in messages."""

    def __init__(self, where: str, *, timeout_seconds: float, check: Callable[[], None]) -> None:
        """Start it. Raises DarkroomError where that fails."""
        self.where = where
        self._timeout_seconds = timeout_seconds
        self._check = check
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-m", _CHILD],
                cwd=PROGRAM_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                **own_process_group(),
            )
        except OSError as error:
            raise DarkroomError(
                f"The process of the reward {where} could not be started: {error.strerror or error}.",
                advice="Close other programs, and try again.",
            ) from error
        self.close = weakref.finalize(self, _end, self._process)
        """Ends the process; also called when the object is dropped, and when the program ends."""

    def ask(self, header: dict[str, Any], blobs: Sequence[bytes], seconds: float = 0.0) -> Message:
        """Send a message and return the answer, within `seconds` (0: the time limit).

        Raises DarkroomError where the function fails, ends its process or takes too long, torch.OutOfMemoryError, and
        what `check` raises; in the last cases the process is ended.
        """
        if not self.close.alive:
            raise DarkroomError(f"The process of the reward {self.where} has ended.", advice="Resume the run.")
        limit = seconds or self._timeout_seconds
        try:
            answer, data = wait_for(
                lambda: self._exchange(header, blobs), seconds=limit, check=self._check, cancel=self.close
            )
        except TimeoutError as error:
            raise DarkroomError(
                f"The reward {self.where} took longer than {limit:g} seconds.",
                advice="Make the function faster, score fewer images at a time, or raise its time limit.",
            ) from error
        except (EOFError, OSError) as error:
            with suppress(subprocess.TimeoutExpired):  # of one that has only closed its output
                self._process.wait(_ENDING_SECONDS)
            self.close()
            code = self._process.returncode
            ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise DarkroomError(
                f"The process of the reward {self.where} ended unexpectedly ({ending}).",
                advice="A library that the function uses may have crashed, or the memory was not enough.",
            ) from error
        if "error" in answer:
            raise DarkroomError(answer["error"], advice=answer["advice"])
        if "out_of_memory" in answer:
            raise torch.OutOfMemoryError(answer["out_of_memory"])
        return answer, data

    def _exchange(self, header: dict[str, Any], blobs: Sequence[bytes]) -> Message:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        send(self._process.stdin, header, blobs)
        return receive(self._process.stdout)


class UserReward:
    """Scores images with the function in a process."""

    def __init__(self, process: UserProcess, *, is_differentiable: bool) -> None:
        self.process = process
        self.is_differentiable = is_differentiable
        self._keys = itertools.count()

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,). Raises as `UserProcess.ask`."""
        if self.is_differentiable and images_B3PP.requires_grad and torch.is_grad_enabled():
            scores_B: torch.Tensor = _ProcessScores.apply(images_B3PP, self, prompts)  # type: ignore[no-untyped-call]
            return scores_B
        return self.scores(images_B3PP, prompts, key=None)

    def next_key(self) -> int:
        """Return a new number for a graph that the process keeps."""
        return next(self._keys)

    def scores(self, images_B3PP: torch.Tensor, prompts: Sequence[str], *, key: int | None) -> torch.Tensor:
        """Return the scores without gradient; with a key the process keeps their graph."""
        header = {
            "do": "score",
            "prompts": list(prompts),
            "shape": list(images_B3PP.shape),
            "key": key,
            # What the function draws repeats with the run, as in the run's own process.
            "seed": torch.initial_seed(),
        }
        _, [data] = self.process.ask(header, [as_bytes(images_B3PP)])
        return as_tensor(data, (len(images_B3PP),)).to(images_B3PP)

    def gradient(self, key: int, gradient_B: torch.Tensor, images_shape: torch.Size) -> torch.Tensor:
        """Return the gradient of the images from the gradient of their scores, whose graph is then gone."""
        _, [data] = self.process.ask({"do": "gradient", "key": key}, [as_bytes(gradient_B)])
        return as_tensor(data, images_shape).to(gradient_B)


class _ProcessScores(torch.autograd.Function):
    """The scores of images, with the gradient that the process computes."""

    @staticmethod
    def forward(ctx: Any, images_B3PP: torch.Tensor, reward: UserReward, prompts: Sequence[str]) -> torch.Tensor:
        """Return the scores (B,) and remember the graph's key."""
        ctx.reward, ctx.key, ctx.images_shape = reward, reward.next_key(), images_B3PP.shape
        return reward.scores(images_B3PP, prompts, key=ctx.key)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient of the images."""
        return ctx.reward.gradient(ctx.key, gradient_B, ctx.images_shape), None, None


def start_user_reward(
    path: Path, function: str, code: bytes, *, device: Device, timeout_seconds: float, check: Callable[[], None]
) -> UserReward:
    """Start a process with a function, and return it as a reward. Raises DarkroomError where the file fails.

    `code` are the file's bytes. A differentiable function gets its images on `device`.
    """
    process = UserProcess(f"{function} of {path.name}", timeout_seconds=timeout_seconds, check=check)
    header = {
        "do": "load",
        "path": str(path),
        "function": function,
        "device": "cpu" if device.is_cpu else str(device.torch),
        "num_threads": torch.get_num_threads(),
    }
    try:
        answer, _ = process.ask(header, [code], _LOADING_SECONDS)
    except BaseException:
        process.close()
        raise
    return UserReward(process, is_differentiable=answer["is_differentiable"])


def make_user_code(scorer: Scorer, context: RewardContext) -> Reward:
    """Return the reward function that the settings name, in a process that ends with the run.

    Raises DarkroomError where the file is not approved, fails, or has no such function.
    """
    path, function = split_reference(scorer.file)
    code = approved_code(path, function, context.approved_hashes)
    reward = start_user_reward(
        path, function, code, device=context.device, timeout_seconds=scorer.timeout_seconds, check=context.check
    )
    context.closing.append(reward.process.close)
    return reward


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it has started, and wait for its end."""
    with suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError, ValueError):
            if pipe is not None:
                pipe.close()
