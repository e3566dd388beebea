"""LoKr: what it adds to a weight, against LyCORIS' formula and peft's layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoKrConfig, inject_adapter_in_model
from torch import nn

from modules.adapters.delta_adapter import DeltaAdapter
from modules.adapters.lokr import Lokr
from modules.adapters.lokr_layers import LOKR_KIND

FORMS: dict[str, dict[str, Any]] = {
    "low rank": {"rank": 2, "alpha": 3.0},
    "both low rank": {"rank": 1, "alpha": 3.0, "decompose_both": True},
    "full matrices": {"rank": 2, "alpha": 3.0, "full_matrix": True},
    "Tucker": {"rank": 2, "alpha": 3.0, "use_tucker": True},
    "factor of 4": {"rank": 2, "alpha": 3.0, "factor": 4},
}
LAYERS = ["linear", "conv"]


def block() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"linear": nn.Linear(24, 64), "conv": nn.Conv2d(24, 64, 3, stride=2, padding=1)})


def inputs(layer: str) -> torch.Tensor:
    shape = (2, 5, 24) if layer == "linear" else (2, 24, 9, 7)
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def attached(module: nn.Module, *, zeros: bool = False, **settings: Any) -> DeltaAdapter:
    adapter = LOKR_KIND.attach("unet", module, LAYERS, Lokr(**settings), seed=1)
    generator = torch.Generator().manual_seed(3)
    for parameter in adapter.parameters().values():
        if not zeros and not parameter.any():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return adapter


def delta_of(adapter: DeltaAdapter, layer: str, shape: torch.Size) -> torch.Tensor:
    """What LyCORIS adds to a weight: the five lines of its formula."""
    w = {n.removeprefix("lokr_"): p for n, p in adapter.deltas[layer].factors().items()}
    w1 = w["w1"] if "w1" in w else w["w1_a"] @ w["w1_b"]
    w2 = torch.einsum("ijkl,ip,jr->prkl", w["t2"], w["w2_a"], w["w2_b"]) if "t2" in w else w.get("w2")
    w2 = w["w2_a"] @ w["w2_b"] if w2 is None else w2
    rank = next((w[n].shape[0] for n in ("w1_b", "w2_b") if n in w), None)
    kernels = w2.reshape(w2.shape[0], shape[1] // w1.shape[1], *shape[2:]).contiguous()
    return torch.kron(w1.reshape(*w1.shape, *(1 for _ in shape[2:])), kernels) * (3.0 / rank if rank else 1.0)


@pytest.mark.parametrize("vec_trick", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", FORMS)
def test_a_layer_with_it_is_the_layer_with_the_merged_weight(form: str, layer: str, vec_trick: bool) -> None:
    module, merged, x = block(), block(), inputs(layer)
    adapter = attached(module, vec_trick=vec_trick, **FORMS[form])
    plain = merged[layer](x)
    delta = delta_of(adapter, layer, merged[layer].weight.shape)
    assert delta.abs().max() > 0.01
    merged[layer].weight.data += delta
    torch.testing.assert_close(module[layer](x), merged[layer](x), rtol=1e-4, atol=1e-5)
    with adapter.disabled():
        assert torch.equal(module[layer](x), plain)


@pytest.mark.parametrize("form", FORMS)
def test_a_fresh_one_changes_nothing_and_learns_the_next_step(form: str) -> None:
    module, plain = block(), block()
    adapter = attached(module, zeros=True, **FORMS[form])
    optimizer = torch.optim.SGD(adapter.parameters().values(), lr=1.0)
    for layer in LAYERS:
        assert torch.equal(module[layer](inputs(layer)), plain[layer](inputs(layer)))
    for _ in range(2):
        optimizer.zero_grad()
        sum(module[layer](inputs(layer)).square().mean() for layer in LAYERS).backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter.parameters().values())
    assert not any(p.requires_grad for n, p in module.named_parameters() if ".lokr." not in n)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("form", ["low rank", "both low rank", "Tucker", "factor of 4"])
def test_pefts_layer_with_the_same_factors_gives_the_same(form: str, layer: str) -> None:
    module, theirs, settings = block(), block(), Lokr(**FORMS[form])
    adapter = attached(module, **FORMS[form])
    config = LoKrConfig(
        r=settings.rank, alpha=settings.alpha, target_modules=LAYERS, decompose_both=settings.decompose_both,
        decompose_factor=settings.factor, use_effective_conv2d=settings.use_tucker,
    )  # fmt: skip
    inject_adapter_in_model(config, theirs)
    for name, factor in adapter.deltas[layer].factors().items():
        getattr(theirs[layer], name)["default"].data = factor.detach().clone()
    torch.testing.assert_close(module[layer](inputs(layer)), theirs[layer](inputs(layer)), rtol=1e-4, atol=1e-5)
