"""Runs that are scored by a reward server: the example of the docs, as a process that is killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.rewards.waiting import Patience
from tests.builders.configs import small_config
from tests.builders.reward_servers import ExampleServer, Reply, serving
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.commands import Stop
from trainer.events import Event, RunFailed, RunFinished, StepFinished, WarningRaised
from trainer.preflight import check

pytestmark = pytest.mark.usefixtures("one_thread")
EPOCHS, STEPS = 1, 3


def served_config(folder: Path, model: Path, images: Path, address: str, **scorer: Any) -> Config:
    """A GRPO run of three steps, scored by a server."""
    return small_config(
        folder,
        model=model,
        images=images,
        training={
            "method": {"name": "grpo", "steps": 2, "group_size": 2, "guidance": 1.0, "kl_weight": 0.0},
            "epochs": EPOCHS,
            "batch_size": 2,
        },
        reward={
            "models": [{"kind": "reward_server", "address": address, **scorer}],
            "measure_every": {"unit": "never"},
        },
    )


@pytest.fixture
def server() -> Iterator[ExampleServer]:
    example = ExampleServer()
    example.start()
    yield example
    example.kill()


class Killer:
    """Kills the server after a step, once."""

    def __init__(self, server: ExampleServer, *, after: int) -> None:
        self._server, self._after = server, after

    def __call__(self, event: Event, send: Any) -> None:
        if isinstance(event, StepFinished) and event.step == self._after:
            self._server.kill()
            self._after = 0


def steps_of(ran: Ran) -> list[int]:
    return [event.step for event in ran.of(StepFinished)]


def test_a_run_outlives_its_server(
    server: ExampleServer, tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed in mid-run. The run waits; without it, it ends with a backup. Nothing is lost either way."""
    config = served_config(tmp_path / "calm", tiny_sd, images, server.address)
    assert not [p for p in check(config).problems if p.path.startswith("reward")]
    calm = run(config)
    assert steps_of(calm) == [*range(1, STEPS + 1)], calm.ending
    assert all(-1 <= s.metrics["reward/reward_server"] <= 1 for s in calm.of(StepFinished))

    rests: list[float] = []

    def restart(self: Patience, seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 3:
            server.start()

    monkeypatch.setattr(Patience, "rest", restart)
    config = served_config(tmp_path / "waits", tiny_sd, images, server.address)
    waited = run(config, on_event=Killer(server, after=2))
    assert (rests, server.num_starts) == ([1.0, 2.0, 4.0], 2)
    assert steps_of(waited) == [*range(1, STEPS + 1)]
    assert_equal_tensors(waited.weights, calm.weights)
    [lost, found] = [w.message for w in waited.of(WarningRaised) if server.address in w.message]
    assert "is not running" in lost
    assert "answers again" in found

    config = served_config(tmp_path / "ends", tiny_sd, images, server.address, retry_minutes=0.0)
    ended = run(config, on_event=Killer(server, after=2))
    assert isinstance(ended.ending, RunFailed)
    assert "is not running" in ended.ending.message
    assert steps_of(ended) == [1, 2]
    assert any(
        p.path == "reward.models.0.address" for p in check(config).errors
    )  # a new start does not begin without it
    server.start()
    resumed = run(config, resume_from=Path(ended.ending.backup_path))
    assert steps_of(resumed) == [3], resumed.ending
    assert_equal_tensors(resumed.weights, calm.weights)


def test_a_run_can_be_stopped_while_it_waits_for_scores(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    sends: list[Any] = []

    def even(message: dict[str, Any]) -> dict[str, Any]:
        return {"scores": [float(index) for index in range(len(message["images"]))]}

    def stop(message: dict[str, Any]) -> bytes:
        sends[-1](Stop())
        return b""

    with serving(Reply(even), Reply(even), Reply(even), Reply(stop, hangs=True)) as hanging:
        config = served_config(tmp_path, tiny_sd, images, hanging.address, timeout_seconds=3600.0)
        ran = run(config, on_event=lambda event, send: sends.append(send))
    assert isinstance(ran.ending, RunFinished), ran.ending
    assert ran.ending.outcome == "stopped"
