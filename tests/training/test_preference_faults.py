"""Planted faults that would train nothing, or the wrong weights: found with a clear error, for every method."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.adapters.lora_layers import LoraAdapter
from modules.memory import checkpointing
from modules.optim.param_groups import named_parameters
from tests.builders.preference import PLAIN_NAMES, SHORT, draw_both, needs_reference, preference_config
from tests.builders.runs import run
from trainer.events import RunFailed
from trainer.methods.protocol import StepContext, StepLoss
from trainer.run import training_run
from trainer.run.finish import PreparedRun
from trainer.run.setup import RunSetup
from trainer.step import watchdog

pytestmark = pytest.mark.usefixtures("one_thread")

NOTHING = "UNet is set to be trained, but no gradient reaches it"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_both(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def ending_of(tiny_sd: Path, drawn: Path, tmp_path: Path) -> Callable[..., str]:
    """Carry out a run of a method whose UNet gets an adapter; return how it failed."""

    def carry_out(method: str, checkpointing: str = "block", **adapter: str) -> str:
        parts = {"unet": {"checkpointing": checkpointing}, "text_encoder": {"train": False}}
        # A chain of several steps with gradient hides reentrant checkpointing: the latents of all but the first of
        # them require a gradient.
        chain = {"backprop_steps": 1} if "backprop_steps" in SHORT[method] else {}
        config = preference_config(
            tmp_path,
            model=tiny_sd,
            drawn=drawn,
            method=method,
            parts=parts,
            adapter={"rank": 2, **adapter},
            training={"method": chain},
        )
        ending = run(config).ending
        assert isinstance(ending, RunFailed), ending
        return ending.message

    return carry_out


def prepared_with(monkeypatch: pytest.MonkeyPatch, change: Callable[[PreparedRun], None]) -> None:
    """Change every run that is prepared from now on."""
    plain = training_run.prepare

    def prepare(setup: RunSetup) -> PreparedRun:
        prepared = plain(setup)
        change(prepared)
        return prepared

    monkeypatch.setattr(training_run, "prepare", prepare)


@pytest.mark.daily(1)
@pytest.mark.parametrize("method", PLAIN_NAMES)
@pytest.mark.parametrize(
    ("mode", "layers", "message"),
    [
        ("block", {"layers": "attention"}, NOTHING),
        ("block", {"layers": "custom", "custom_layers": "attn, up_blocks.1"}, "Part of UNet is not being trained"),
        pytest.param("whole", {}, NOTHING, marks=pytest.mark.full),
    ],
    ids=["nothing", "only the last layers", "nothing of a whole part"],
)
def test_reentrant_checkpointing(
    method: str,
    mode: str,
    layers: dict[str, str],
    message: str,
    ending_of: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gives an adapter no gradient where no input requires one; torch only warns."""
    plain = checkpointing.checkpoint

    def reentrant(
        function: Callable[..., Any],
        *args: Any,
        use_reentrant: bool,
        preserve_rng_state: bool,
        determinism_check: str = "default",  # which only the other way has
        **kwargs: Any,
    ) -> Any:
        return plain(
            lambda *a: function(*a, **kwargs), *args, use_reentrant=True, preserve_rng_state=preserve_rng_state
        )

    monkeypatch.setattr(checkpointing, "checkpoint", reentrant)
    monkeypatch.setattr(watchdog, "FIRST_STEPS", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert message in ending_of(method, mode, **layers)


@pytest.mark.daily(2)
@pytest.mark.parametrize("method", PLAIN_NAMES)
def test_a_reference_left_active(method: str, ending_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    left_open: list[Any] = []  # a generator without a reference to it is closed at once

    def plant(prepared: PreparedRun) -> None:
        kind = type(prepared.training.method)
        plain = kind.loss

        def loss(self: Any, batch: Any, context: StepContext) -> StepLoss:
            found = plain(self, batch, context)
            left_open.append(context.prior())
            left_open[-1].__enter__()
            return found

        monkeypatch.setattr(kind, "loss", loss)

    prepared_with(monkeypatch, plant)
    ending = ending_of(method)  # a method whose record states no reference cannot even begin one
    assert "left the reference model active" in ending or "its record sets no `needs_reference`" in ending


@pytest.mark.daily(2)
@pytest.mark.parametrize("method", [m for m in PLAIN_NAMES if needs_reference(m)])
def test_adapters_that_stay_off_after_a_reference(
    method: str, ending_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def disabled(self: LoraAdapter) -> Iterator[None]:
        for _, layer in self.layers():
            layer.enable_adapters(False)
        with torch.no_grad():
            yield

    monkeypatch.setattr(LoraAdapter, "disabled", disabled)
    assert NOTHING in ending_of(method)


@pytest.mark.daily(2)
@pytest.mark.parametrize("method", PLAIN_NAMES)
def test_a_frozen_adapter(method: str, ending_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def plant(prepared: PreparedRun) -> None:
        for parameter in named_parameters(prepared.model.groups).values():
            parameter.requires_grad_(False)

    prepared_with(monkeypatch, plant)
    assert NOTHING in ending_of(method)


@pytest.mark.daily(1)
@pytest.mark.parametrize("method", PLAIN_NAMES)
def test_the_frozen_adapter_of_a_single_layer(
    method: str, ending_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    frozen: list[str] = []

    def plant(prepared: PreparedRun) -> None:
        parameters = named_parameters(prepared.model.groups)
        frozen.extend(list(parameters)[:2])
        for name in frozen:
            parameters[name].requires_grad_(False)

    prepared_with(monkeypatch, plant)
    monkeypatch.setattr(watchdog, "FIRST_STEPS", 2)
    message = ending_of(method)
    assert "Part of UNet is not being trained: 2 of its" in message
    assert all(name in caplog.text and name not in message for name in frozen)
