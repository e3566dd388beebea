"""LoHa and OFT: what they add to a layer, against the formulas, peft and LyCORIS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lycoris import create_lycoris_from_weights
from peft import LoHaConfig, OFTConfig, inject_adapter_in_model
from torch import nn

from modules.adapters.changes import weight_change
from modules.adapters.delta_adapter import DeltaAdapter
from modules.adapters.kept_layers import attach_kept
from modules.adapters.loha_layers import HadamardProduct
from modules.adapters.oft_layers import CayleyTransform, RotationDelta, cayley, cayley_series, generators
from modules.adapters.protocol import Adapter, kind_of
from modules.adapters.registry import ADAPTERS
from modules.families.lora_naming import LoraNaming
from modules.formats.adapter_layers import AdapterLayer
from modules.settings.edit import set_path
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny
from tests.builders.runs import run
from tests.builders.standalone import settings_of
from trainer.preflight import check

FORMS: dict[str, dict[str, Any]] = {
    "LoHa": {"name": "loha", "rank": 2, "alpha": 3.0},
    "LoHa, Tucker": {"name": "loha", "rank": 2, "alpha": 3.0, "use_tucker": True},
    "LoHa, DoRA": {"name": "loha", "rank": 2, "alpha": 3.0, "decompose": True},
    "OFT": {"name": "oft", "block_size": 8},
    "OFT, adjusted blocks": {"name": "oft", "block_size": 7},
    "OFT, rescaled": {"name": "oft", "block_size": 8, "rescale": True},
    "OFT, shared and scaled": {"name": "oft", "block_size": 8, "block_share": True, "scaled": True},
    "COFT": {"name": "oft", "block_size": 8, "constraint": 0.01, "rescale": True},
    "OFT v2": {"name": "oft", "block_size": 8, "rotates": "inputs"},
    "OFT v2, shared and scaled": {
        "name": "oft", "block_size": 8, "rotates": "inputs", "block_share": True, "scaled": True, "constraint": 0.01
    },
}  # fmt: skip
LAYERS = ["linear", "pointwise", "conv", "strided"]
every_form = pytest.mark.parametrize("form", FORMS)


def block() -> nn.ModuleDict:
    torch.manual_seed(0)
    layers = {"linear": nn.Linear(24, 64), "pointwise": nn.Conv2d(24, 64, 1), "conv": nn.Conv2d(24, 64, 3, padding=1)}
    return nn.ModuleDict({**layers, "strided": nn.Conv2d(24, 64, 3, stride=2, padding=1, bias=False)})


def inputs(layer: str) -> torch.Tensor:
    shape = (2, 5, 24) if layer == "linear" else (2, 24, 9, 7)
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def attached(
    module: nn.Module, form: dict[str, Any], targets: list[str] = LAYERS, *, fresh: bool = False
) -> DeltaAdapter:
    spec = ADAPTERS[form["name"]]
    adapter = kind_of(spec).attach("unet", module, targets, spec.settings(**form), seed=1)
    assert isinstance(adapter, DeltaAdapter)
    if not fresh:
        stir(adapter)
    return adapter


def stir(adapter: Adapter) -> None:
    generator = torch.Generator().manual_seed(3)
    for parameter in adapter.parameters().values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.3


def stored(adapter: Adapter) -> list[AdapterLayer]:
    return adapter.stored_layers({name: p.detach() for name, p in adapter.parameters().items()})


@every_form
def test_a_layer_with_it_is_the_layer_with_the_weight_that_its_file_gives(form: str) -> None:
    module, merged, again = block(), block(), block()
    adapter = attached(module, FORMS[form])
    if FORMS[form].get("decompose"):  # which is kept as it is, unless it is trained
        attach_kept({"unet": again}, stored(adapter), where="file")
    else:
        spec, layers = ADAPTERS[FORMS[form]["name"]], stored(adapter)
        settings = settings_of(spec, layers)
        kind_of(spec).attach("unet", again, [own.path for own in layers], settings, seed=0, start=layers)
    for own in stored(adapter):
        layer, x = own.path, inputs(own.path)
        plain = merged[layer](x)
        change = weight_change(own.factors, own.alpha, merged[layer].weight)
        assert change is not None
        assert change.abs().max() > 0.01
        merged[layer].weight.data += change
        torch.testing.assert_close(module[layer](x), merged[layer](x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(again[layer](x), merged[layer](x), rtol=1e-5, atol=1e-5)
        with adapter.disabled():
            assert torch.equal(module[layer](x), plain)


@every_form
def test_a_fresh_one_changes_nothing_and_learns(form: str) -> None:
    module, plain = block(), block()
    adapter = attached(module, FORMS[form], fresh=True)
    optimizer = torch.optim.SGD(adapter.parameters().values(), lr=0.1)
    tolerance = 1e-6 if FORMS[form].get("decompose") else 0.0
    for layer in LAYERS:
        x = inputs(layer)
        torch.testing.assert_close(module[layer](x), plain[layer](x), rtol=tolerance, atol=tolerance)
    for _ in range(2):
        optimizer.zero_grad()
        sum(module[layer](inputs(layer)).pow(3).mean() for layer in LAYERS).backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter.parameters().values())
    assert {f"unet.{n}" for n, p in module.named_parameters() if p.requires_grad} == adapter.parameters().keys()


def test_gradients_are_those_of_the_functions() -> None:
    generator = torch.Generator().manual_seed(0)
    skew = torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(CayleyTransform.apply, (skew - skew.transpose(1, 2)).requires_grad_())
    shapes = ((5, 2), (2, 7), (5, 2), (2, 7))
    matrices = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    assert torch.autograd.gradcheck(HadamardProduct.apply, matrices)


def test_a_cayley_transform_is_a_rotation_and_its_series_comes_near() -> None:
    small = generators({"oft_blocks": torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0)) * 0.3})
    rotation, eye = cayley(small) + torch.eye(16), torch.eye(16).expand(3, 16, 16)
    torch.testing.assert_close(rotation @ rotation.transpose(1, 2), eye, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.linalg.det(rotation), torch.ones(3))
    torch.testing.assert_close(cayley_series(small * 0.02), cayley(small * 0.02), rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", ["OFT", "COFT"])
def test_oft_keeps_norms_and_coft_stays_near_the_weight(form: str) -> None:
    module = block()
    adapter = attached(module, FORMS[form] | {"rescale": False})
    [own] = [s for s in stored(adapter) if s.path == "linear"]
    weight = module["linear"].weight
    change = weight_change(own.factors, own.alpha, weight)
    assert change is not None
    torch.testing.assert_close((weight + change).norm(dim=0), weight.norm(dim=0))
    norm = generators(own.factors).norm()
    assert norm == pytest.approx(0.01 * 64, rel=1e-5) if form == "COFT" else norm > 5


@pytest.mark.parametrize("form", ["LoHa", "LoHa, Tucker", "OFT v2", "OFT v2, shared and scaled"])
def test_pefts_layer_with_the_same_factors_gives_the_same(form: str) -> None:
    module, theirs, settings = block(), block(), FORMS[form]
    layers = (
        LAYERS if "LoHa" in form else ["linear", "pointwise"]
    )  # peft's OFT of a kernel is not the identity at first
    adapter = attached(module, settings)
    if "LoHa" in form:
        tucker = settings.get("use_tucker", False)
        config: Any = LoHaConfig(r=2, alpha=3.0, target_modules=layers, use_effective_conv2d=tucker)
    else:
        shares = settings.get("block_share", False)
        config = OFTConfig(r=0, oft_block_size=8, target_modules=layers, block_share=shares, use_cayley_neumann=True)
    inject_adapter_in_model(config, theirs)
    for own in stored(adapter):
        if own.path not in layers:
            continue
        layer = theirs[own.path]
        for name, factor in own.factors.items():
            if "LoHa" in form:
                getattr(layer, name)["default"].data = factor.clone()
            else:
                layer.oft_R["default"].weight.data = factor.clone()
        x = inputs(own.path)
        torch.testing.assert_close(module[own.path](x), layer(x), rtol=1e-4, atol=1e-5)


@every_form
def test_it_continues_a_file_with_the_same_function(form: str) -> None:
    module, again, settings = block(), block(), FORMS[form]
    start = stored(attached(module, settings))
    other = {"block_size": 2, "constraint": 1.0, "scaled": True} if "OFT" in form else {"rank": 5, "alpha": 7.0}
    spec = ADAPTERS[settings["name"]]
    kind_of(spec).attach("unet", again, LAYERS, spec.settings(**settings | other), seed=2, start=start, where="file")
    for layer in LAYERS:
        x = inputs(layer)
        torch.testing.assert_close(again[layer](x), module[layer](x), rtol=1e-4, atol=1e-5)


LYCORIS = {
    **{name: FORMS[name] for name in ("LoHa", "LoHa, Tucker", "OFT", "OFT, shared and scaled", "COFT")},
    "LoKr": {"name": "lokr", "rank": 2, "alpha": 3.0},
    "LoKr, full": {"name": "lokr", "full_matrix": True},
}


@pytest.mark.parametrize("form", LYCORIS)
def test_lycoris_reads_the_file_and_predicts_the_same(form: str, tiny_sd: Path) -> None:
    family, plain = load_tiny(tiny_sd), load_tiny(tiny_sd)
    unet, theirs = family.parts["unet"].module, plain.parts["unet"].module
    spec = ADAPTERS[LYCORIS[form]["name"]]
    targets = [n for n, m in unet.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    adapter = kind_of(spec).attach("unet", unet, targets, spec.settings(**LYCORIS[form]), seed=1)
    for parameter in adapter.parameters().values():
        parameter.data += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.05
    naming = family.lora_naming
    assert isinstance(naming, LoraNaming)
    tensors, _ = kind_of(spec).write(stored(adapter), "kohya", naming)
    before = predicted(theirs)
    # For a UNet alone LyCORIS has a prefix of its own.
    named = {f"lycoris_{name.removeprefix('lora_unet_')}": tensor for name, tensor in tensors.items()}
    network, _ = create_lycoris_from_weights(1.0, "", theirs, weights_sd=named)
    assert len(network.loras) == len(targets)
    network.apply_to()
    network.eval()
    torch.testing.assert_close(predicted(theirs), predicted(unet), rtol=1e-4, atol=1e-4)
    assert (before - predicted(unet)).abs().max() > 1e-2


def predicted(unet: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    noisy, width = torch.randn(1, 4, 8, 8, generator=generator), unet.config.cross_attention_dim
    text = torch.randn(1, 3, width, generator=generator)
    with torch.no_grad():
        return unet.eval()(noisy, torch.tensor([7]), text, return_dict=False)[0]


def test_a_constraint_in_a_file_counts() -> None:
    blocks = torch.randn(8, 8, 8, generator=torch.Generator().manual_seed(0))
    module, merged, x = block(), block(), inputs("linear")
    own = AdapterLayer("unet", "linear", {"oft_blocks": blocks}, 0.01)
    attach_kept({"unet": module}, [own], where="file")
    change = weight_change(own.factors, own.alpha, merged["linear"].weight)
    assert change is not None
    merged["linear"].weight.data += change
    torch.testing.assert_close(module["linear"](x), merged["linear"](x), rtol=1e-5, atol=1e-5)
    assert change.norm() < 0.2 * merged["linear"].weight.norm()


def test_a_bias_that_is_kept_beside_it_is_not_rotated() -> None:
    module, plain, x = block(), block(), inputs("conv")
    bias = torch.linspace(-3, 3, 64)
    attach_kept({"unet": module}, [AdapterLayer("unet", "conv", {"diff_b": bias})], where="file")
    [own] = stored(attached(module, FORMS["OFT"], ["conv"]))
    change = weight_change(own.factors, own.alpha, plain["conv"].weight)
    assert change is not None
    plain["conv"].weight.data += change
    plain["conv"].bias.data += bias
    torch.testing.assert_close(module["conv"](x), plain["conv"](x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["dropout", "module_dropout"])
@pytest.mark.parametrize("form", ["LoHa", "OFT", "OFT v2"])
def test_dropouts_leave_something_out_in_training_alone(form: str, kind: str) -> None:
    module, plain, x = block().train(), block(), inputs("linear")
    adapter = attached(module, FORMS[form] | {kind: 0.5})
    torch.manual_seed(0)
    drawn = [module["linear"](x) for _ in range(16)]
    whole = module.eval()["linear"](x)
    if kind == "module_dropout":
        left_out = sum(torch.equal(y, plain["linear"](x)) for y in drawn)
        assert 0 < left_out < 16
        assert left_out + sum(torch.equal(y, whole) for y in drawn) == 16
    else:
        assert len({float(y.detach().sum()) for y in drawn}) > 4
    if form == "OFT" and kind == "dropout":
        delta = adapter.deltas["linear"]
        assert isinstance(delta, RotationDelta)
        is_left_out = delta.train().rotations().flatten(1).abs().amax(1) == 0
        assert 0 < is_left_out.sum() < 8


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("form", ["LoHa", "OFT", "OFT v2"])
def test_weights_of_16_bits_act_within_their_precision(form: str, dtype: str) -> None:
    module, wide = block(), block()
    attached(module, FORMS[form] | {"dtype": dtype})
    attached(wide, FORMS[form])
    for layer in LAYERS:
        y = module[layer](inputs(layer))
        assert y.dtype == torch.float32
        torch.testing.assert_close(y, wide[layer](inputs(layer)), rtol=0.05, atol=0.15)


def test_a_block_as_large_as_the_outputs_of_layers_trains_them_and_is_named(
    tiny_sd: Path, images: Path, tmp_path: Path
) -> None:
    """The default block size is that: nothing was trained, and the watchdog blamed the precision."""
    config, _ = set_path(small_config(tmp_path, model=tiny_sd, images=images), "adapter", "oft")
    config = laid_over(config, {"training": {"epochs": 1}})
    found = check(config).problems
    assert [p.severity for p in found if p.path == "adapter.block_size"] == ["info"]
    assert not [p for p in found if p.severity == "error"]
    ran = run(config)
    assert ran.finished.outcome == "finished", ran.ending
    blocks = {n: t for n, t in ran.weights.items() if "oft_blocks" in n}
    assert blocks
    assert all(t.shape[-1] > 1 and bool(t.any()) for t in blocks.values())
