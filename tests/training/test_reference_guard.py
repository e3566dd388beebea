"""A reference model that is left active at the backward pass: found at once, and the trained model is back."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.adapters.lora_layers import LoraShape, attach_lora
from modules.memory.frozen_copy import FrozenCopy
from modules.system.devices import CPU
from tests.builders.configs import small_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.events import RunFailed, RunStarted, StepFinished
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepLoss
from trainer.run_folder.backup import list_backups
from trainer.step.precision import Precision
from trainer.step.prediction_modes import ReferenceOpenError, prior_mode, require_no_reference
from trainer.step.stepper import Stepper

pytestmark = pytest.mark.usefixtures("one_thread")

INPUTS = torch.ones(1, 8)


class Model:
    """A layer that is trained whole, or whose adapter is, and its reference."""

    def __init__(self, trains: str) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
        adapters, copies = [], []
        if trains == "full":
            copies.append(FrozenCopy(self.module.parameters()))
            self.parameters = dict(self.module.named_parameters())
        else:
            self.module.requires_grad_(False)
            adapters.append(attach_lora("x", self.module, ["0"], LoraShape(2, 2.0, 0.0, torch.float32), seed=1))
            self.parameters = adapters[0].parameters()
        with torch.no_grad():
            for parameter in self.parameters.values():
                parameter.add_(0.5)
        self.reference = lambda name="bfloat16": prior_mode(adapters, copies, [self.module], Precision(name, CPU))

    def trained(self) -> torch.Tensor:
        with torch.no_grad():
            return self.module[0](INPUTS).clone()


def nothing_left(model: Model) -> bool:
    """Whether the mode of everything is that of training."""
    require_no_reference()
    return model.module.training and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("trains", ["lora", "full"])
def test_left_open_at_the_backward_pass(trains: str) -> None:
    model = Model(trains)
    expected = model.trained()
    group = {"params": list(model.parameters.values()), "unit": "unet", "number": 0}
    optimizer = torch.optim.SGD([group], lr=0.1)
    stepper = Stepper(
        [], optimizer, scaler=torch.amp.GradScaler(enabled=False), clip_grad_norm=None, rate_factor=float, ema=None
    )
    loss = StepLoss(torch.ones((), requires_grad=True), 1, 1, is_last_micro_batch=True)
    held: list[AbstractContextManager[None]] = [model.reference(), model.reference()]
    for reference in held:
        reference.__enter__()
    assert not torch.equal(model.trained(), expected)
    with pytest.raises(ReferenceOpenError, match="left the reference model active"):
        stepper.backward(loss)
    assert torch.equal(model.trained(), expected)
    assert all(p.requires_grad for p in model.parameters.values())
    assert nothing_left(model)
    held.clear()  # their own end changes nothing any more
    assert torch.equal(model.trained(), expected)
    assert nothing_left(model)


@pytest.mark.parametrize("trains", ["lora", "full"])
def test_an_exception_inside_leaves_it(trains: str) -> None:
    model = Model(trains)
    expected = model.trained()
    with suppress(KeyError), model.reference(), model.reference():
        raise KeyError
    assert torch.equal(model.trained(), expected)
    assert nothing_left(model)
    assert model.module[0](INPUTS).requires_grad


@pytest.mark.daily(1)
@pytest.mark.parametrize("trains", ["adapter", "full"])
@pytest.mark.parametrize("fault", ["left open", "left open, then an exception"])
def test_a_run_with_a_method_that_leaves_it_open_fails_and_keeps_its_training(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trains: str, fault: str
) -> None:
    """Planted in the second step: the backup of the first has the trained weights, not the reference's."""
    config = small_config(
        tmp_path,
        model=tiny_sd,
        images=images,
        training={"trains": trains, "precision": "bfloat16", "epochs": 1},
        parts={"text_encoder": {"train": False}},
        output={"dtype": "float32"},
        concepts=[{"path": str(images)}, {"path": str(images), "kind": "prior_prediction"}],  # a fine-tune keeps a copy
    )
    plain, held = Denoise.loss, []
    expected: dict[str, torch.Tensor] = {}

    def loss(method: Denoise, batch: Any, context: Any) -> StepLoss:
        found = plain(method, batch, context)
        if batch.step == 1:
            module = context.family.parts["unet"].module
            expected.update({n: p.detach().clone() for n, p in module.named_parameters()})
            held.append(context.prior())
            held[-1].__enter__()
            if fault != "left open":
                raise RuntimeError("something else")
        return found

    monkeypatch.setattr(Denoise, "loss", loss)
    ran = run(config)
    assert isinstance(ran.ending, RunFailed)
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    if fault == "left open":
        assert "ReferenceOpenError" in Path(ran.ending.details_path).read_text()
    assert len(ran.of(StepFinished)) == 1
    [backup] = list_backups(Path(ran.of(RunStarted)[0].run_dir))
    saved = load_file(backup.path / "weights.safetensors")
    assert_equal_tensors(saved, {name: expected[name.removeprefix("unet.")] for name in saved})
