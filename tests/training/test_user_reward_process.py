"""A user's reward function in a process of its own: equal scores and gradients, time limit, crashes, stops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from modules.rewards.composite import build_rewards
from modules.rewards.models.user_code import load_user_reward
from modules.rewards.models.user_process import UserReward, start_user_reward
from modules.rewards.protocol import RewardContext
from modules.rewards.settings import Scorer
from modules.rewards.user_code_file import hash_of
from modules.system.devices import CPU
from modules.system.errors import DarkroomError

pytestmark = pytest.mark.usefixtures("one_thread")

CODE = """
import os, random, signal, sys
import torch

factor = torch.ones((), requires_grad=True)
calls = []


def score(images, prompts):
    calls.append(len(images))
    print("this is not part of the answer")
    match prompts[0]:
        case "loop":
            while True:
                pass
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(7)
        case "error":
            return images / [][0]
        case "memory":
            raise torch.OutOfMemoryError("none left")
        case "blind":
            return images.detach().mean(dim=(1, 2, 3))
        case "random":
            return torch.rand(len(images)) + random.random()
        case "calls":
            return torch.tensor([float(len(calls)), float(os.getpid())])
        case "apart":
            return factor * torch.ones(len(images))
    return factor * images.square().mean(dim=(1, 2, 3)).cumsum(0)  # each depends on the images before it
"""
IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
PROMPTS = ["a cat \u2014 \U0001f408", "b"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "mine.py"
    path.write_text(CODE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def start(file: Path, one_thread: None) -> Iterator[Callable[..., UserReward]]:
    """Start a process; those of the module are ended with it."""
    started: list[UserReward] = []

    def start(*, timeout_seconds: float = 60.0, check: Callable[[], None] = lambda: None) -> UserReward:
        options = {"device": CPU, "timeout_seconds": timeout_seconds, "check": check}
        started.append(start_user_reward(file, "score", file.read_bytes(), **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for reward in started:
        reward.process.close()


@pytest.fixture(scope="module")
def reward(start: Callable[..., UserReward]) -> UserReward:
    return start()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def pid_of(reward: UserReward) -> int:
    return int(reward(IMAGES, ["calls", ""])[1])


def test_scores_and_gradients_are_those_of_the_function(reward: UserReward, file: Path) -> None:
    here = load_user_reward(file.read_bytes(), file, "score")
    theirs, ours = IMAGES.clone().requires_grad_(), IMAGES.clone().requires_grad_()
    weights = torch.tensor([2.0, -3.0])
    (here(theirs, PROMPTS) * weights).sum().backward()
    scores = reward(ours, PROMPTS)
    assert torch.equal(scores, here(IMAGES, PROMPTS))
    reward(IMAGES.clone().requires_grad_(), PROMPTS)  # a loss in between, which is dropped
    (scores * weights).sum().backward()
    assert theirs.grad is not None
    assert ours.grad is not None
    assert torch.equal(ours.grad, theirs.grad)
    assert not reward(IMAGES, PROMPTS).requires_grad
    with torch.no_grad():
        assert not reward(ours, PROMPTS).requires_grad
    apart = IMAGES.clone().requires_grad_()
    reward(apart, ["apart", ""]).sum().backward()
    assert apart.grad is not None
    assert not apart.grad.any()


def test_the_process_keeps_its_state_and_draws_what_the_run_seeds(reward: UserReward) -> None:
    first, second = reward(IMAGES, ["calls", ""]), reward(IMAGES, ["calls", ""])
    assert second[0] == first[0] + 1
    assert int(first[1]) != os.getpid()
    draws = []
    for seed in (1, 1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            draws.append(reward(IMAGES, ["random", ""]))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_errors_are_one_sentence_with_the_line(reward: UserReward) -> None:
    line = CODE[: CODE.index("images / [][0]")].count("\n") + 1
    with pytest.raises(DarkroomError, match=rf"^The reward score of mine.py failed in line {line}: list index out"):
        reward(IMAGES, ["error", ""])
    with pytest.raises(DarkroomError, match="cannot be traced back to the images"):
        reward(IMAGES.clone().requires_grad_(), ["blind", ""])
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        reward(IMAGES, ["memory", ""])
    assert torch.isfinite(reward(IMAGES, PROMPTS)).all()  # it still answers


def test_a_function_that_takes_too_long_is_ended(start: Callable[..., UserReward]) -> None:
    slow = start(timeout_seconds=0.5)
    pid = slow.process._process.pid  # without a question, whose answer can take longer on a busy machine
    with pytest.raises(DarkroomError, match=r"The reward score of mine.py took longer than 0\.5 seconds"):
        slow(IMAGES, ["loop", ""])
    assert not is_alive(pid)
    with pytest.raises(DarkroomError, match="has ended"):
        slow(IMAGES, PROMPTS)


class Stopped(Exception):  # noqa: N818
    """A stop of the run."""


@pytest.mark.full
@pytest.mark.parametrize(("prompt", "ending"), [("crash", "signal SIGSEGV"), ("exit", "exit code 7")])
def test_a_crash_of_the_function_is_not_one_of_the_run(
    start: Callable[..., UserReward], prompt: str, ending: str
) -> None:
    crashing = start()
    with pytest.raises(DarkroomError, match=rf"process of the reward score of mine.py ended unexpectedly \({ending}\)"):
        crashing(IMAGES, [prompt, ""])


def test_a_stop_kills_the_process_and_so_does_the_end_of_a_run(file: Path, start: Callable[..., UserReward]) -> None:
    stops: list[bool] = []

    def check() -> None:
        if stops:
            raise Stopped

    stopped = start(check=check)
    pid = pid_of(stopped)
    stops.append(True)
    with pytest.raises(Stopped):
        stopped(IMAGES, ["loop", ""])
    assert not is_alive(pid)

    context = RewardContext(CPU, approved_hashes=frozenset({hash_of(file)}))
    [model] = build_rewards([Scorer(kind="user_code", file=f"{file}:score")], context).reward_models
    pid = int(model.reward(IMAGES, ["calls", ""])[1])
    [close] = context.closing
    close()
    assert not is_alive(pid)
    broken = b"raise ValueError('no')"
    with pytest.raises(DarkroomError, match="failed in line 1: no"):
        start_user_reward(file, "score", broken, device=CPU, timeout_seconds=60.0, check=lambda: None)
