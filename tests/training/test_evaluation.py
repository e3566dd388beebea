"""Looking at the model leaves no trace: modes, weights and the optimizer's own mode come back, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from modules.optim.ema import Ema
from modules.optim.param_groups import TrainGroup, optimizer_parameters
from modules.system.devices import resolve_device
from trainer.step.evaluation import Evaluation


class ScheduleFree(torch.optim.SGD):
    """Stands in for a schedule-free optimizer: two modes, between which it moves the weights, there and back."""

    is_training = True

    @torch.no_grad()
    def eval(self) -> None:
        """Move to the weights for evaluation."""
        assert self.is_training
        self.is_training = False
        for parameter in (p for g in self.param_groups for p in g["params"]):
            parameter.lerp_(torch.ones_like(parameter), 1 - 1 / 0.9)

    @torch.no_grad()
    def train(self) -> None:
        """Go back, which rounds."""
        assert not self.is_training
        self.is_training = True
        for parameter in (p for g in self.param_groups for p in g["params"]):
            parameter.lerp_(torch.ones_like(parameter), 1 - 0.9)


def trained(dtype: torch.dtype = torch.float32) -> tuple[nn.Sequential, TrainGroup]:
    """A part in training mode, of which one module is out of training by itself."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Dropout(0.5)).to(dtype).train()
    module[2].eval()
    group = TrainGroup("unet", {f"unet.{n}": p for n, p in module.named_parameters()}, 0.1)
    group.master_weight("master")
    return module, group


def evaluation_of(
    module: nn.Module, group: TrainGroup, kind: type[torch.optim.Optimizer] = ScheduleFree, ema: Ema | None = None
) -> Evaluation:
    optimizer: Any = kind([{"params": list(optimizer_parameters([group]).values()), "unit": "unet"}], lr=0.1)  # type: ignore[call-arg]
    return Evaluation([module], ema, optimizer, [group])


def bits(module: nn.Module, group: TrainGroup) -> list[torch.Tensor]:
    return [t.detach().clone() for t in (*module.parameters(), *optimizer_parameters([group]).values())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("breaks", [False, True])
def test_modes_and_weights_come_back(dtype: torch.dtype, breaks: bool) -> None:
    module, group = trained(dtype)
    evaluation, before = evaluation_of(module, group), bits(*trained(dtype))
    optimizer: Any = evaluation.optimizer
    with pytest.raises(RuntimeError, match="planted") if breaks else evaluation.active():
        if breaks:
            with evaluation.active():
                raise RuntimeError("planted")
        assert not any(m.training for m in module.modules())
        assert not optimizer.is_training
        assert not torch.is_grad_enabled()
        assert not torch.equal(module[0].weight, before[0])  # bfloat16 weights follow their master weights
    assert [m.training for m in module.modules()] == [True, True, True, False]
    assert optimizer.is_training
    assert torch.is_grad_enabled()
    assert all(torch.equal(a, b) for a, b in zip(bits(module, group), before, strict=True))


def test_without_the_copies_the_way_back_would_round() -> None:
    """The error that the copies prevent."""
    module, group = trained()
    optimizer: Any = evaluation_of(module, group).optimizer
    before = bits(module, group)
    optimizer.eval()
    optimizer.train()
    assert not all(torch.equal(a, b) for a, b in zip(bits(module, group), before, strict=True))


def test_what_is_saved_is_what_is_judged() -> None:
    module, group = trained(torch.bfloat16)
    evaluation, before = evaluation_of(module, group), bits(*trained(torch.bfloat16))
    with evaluation.active():
        scored = {n: p.detach().clone() for n, p in optimizer_parameters([group]).items()}
    with evaluation.values() as values:
        assert all(torch.equal(values[n], scored[n]) and values[n].dtype == torch.float32 for n in scored)
    assert all(torch.equal(a, b) for a, b in zip(bits(module, group), before, strict=True))


def test_averages_are_judged_and_saved_where_they_are_kept() -> None:
    module, group = trained()
    ema = Ema(group.parameters, decay=0.5, update_every_steps=1, device=resolve_device("cpu"))
    with torch.no_grad():
        module[0].weight += 1.0
    evaluation = evaluation_of(module, group, ema=ema)
    optimizer: Any = evaluation.optimizer
    with evaluation.active():
        assert optimizer.is_training
        assert torch.equal(module[0].weight, ema.averages["unet.0.weight"])
    with evaluation.values() as values:
        assert values is ema.averages


def test_other_optimizers_are_left_alone() -> None:
    module, group = trained()
    evaluation, before = evaluation_of(module, group, torch.optim.SGD), bits(module, group)
    with evaluation.active(), evaluation.values() as values:
        assert torch.equal(values["unet.0.weight"], before[0])
