"""A frozen layer of a file acts as the merged weight would, for each kind of change, whatever saves memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from modules.adapters.kept_layers import attach_kept, kept_fingerprint
from modules.adapters.lora_layers import LoraShape, attach_lora
from modules.families.protocol import PartMemory
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_types import can_act
from modules.system.errors import DarkroomError
from tests.builders.adapter_files import Filled, lora_factors, places
from tests.training.test_checkpointing import Parameters, gradients, predicted, with_lora

Tensors = dict[str, torch.Tensor]
SCALE = 0.75  # alpha 3 by rank 4


def block() -> nn.ModuleDict:
    """A layer of each kind that files change, with values of its own."""
    torch.manual_seed(0)
    layers = {
        "linear": nn.Linear(8, 12),
        "channels_last": nn.Linear(8, 12),
        "conv": nn.Conv2d(8, 12, 3, stride=2, padding=1),
        "pointwise": nn.Conv2d(8, 12, 1),
        "layer_norm": nn.LayerNorm(8),
        "group_norm": nn.GroupNorm(2, 8),
    }
    for norm in (layers["layer_norm"], layers["group_norm"]):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return nn.ModuleDict(layers)


def inputs(layer: str) -> torch.Tensor:
    if layer == "channels_last":
        return torch.randn(2, 6, 6, 8)
    return torch.randn(2, 5, 8) if layer in ("linear", "layer_norm") else torch.randn(2, 8, 6, 6)


def lora(weight: torch.Tensor, filled: Filled) -> tuple[Tensors, torch.Tensor]:
    factors = lora_factors(weight, 4, filled)
    down, up = factors["lora_down.weight"], factors["lora_up.weight"]
    return factors, SCALE * (up.flatten(1) @ down.flatten(1)).reshape(weight.shape)


def tucker(weight: torch.Tensor, filled: Filled) -> tuple[Tensors, torch.Tensor]:
    factors = lora_factors(weight, 4, filled, tucker=True)
    if "lora_mid.weight" not in factors:
        return lora(weight, filled)
    # As its three convolutions one after the other, on an impulse at each input.
    impulses = torch.eye(weight.shape[1])[:, :, None, None]
    low = nn.functional.conv2d(impulses, factors["lora_down.weight"])
    middle = nn.functional.conv2d(nn.functional.pad(low, (2, 2, 2, 2)), factors["lora_mid.weight"])
    high = nn.functional.conv2d(middle, factors["lora_up.weight"])
    return factors, SCALE * high.flip(2, 3).transpose(0, 1)


def loha(weight: torch.Tensor, filled: Filled) -> tuple[Tensors, torch.Tensor]:
    out_channels, columns = weight.shape[0], weight[0].numel()
    names = {"hada_w1_a": out_channels, "hada_w2_a": out_channels}
    factors = {n: filled(rows, 4) * 5 for n, rows in names.items()}
    factors |= {n: filled(4, columns) * 5 for n in ("hada_w1_b", "hada_w2_b")}
    change = (factors["hada_w1_a"] @ factors["hada_w1_b"]) * (factors["hada_w2_a"] @ factors["hada_w2_b"])
    return factors, SCALE * change.reshape(weight.shape)


def lokr(weight: torch.Tensor, filled: Filled) -> tuple[Tensors, torch.Tensor]:
    columns = weight[0].numel() // 2
    factors = {"lokr_w1": filled(3, 2) * 9, "lokr_w2_a": filled(4, 4), "lokr_w2_b": filled(4, columns)}
    second = (factors["lokr_w2_a"] @ factors["lokr_w2_b"]).reshape(4, weight.shape[1] // 2, *weight.shape[2:])
    first = factors["lokr_w1"]
    rows = [torch.cat([first[i, j] * second for j in range(2)], dim=1) for i in range(3)]
    return factors, SCALE * torch.cat(rows, dim=0)


def dora(weight: torch.Tensor, filled: Filled) -> tuple[Tensors, torch.Tensor]:
    factors, change = lora(weight, filled)
    changed = weight + change
    norms = changed.flatten(1).norm(dim=1)
    magnitude = 1.3 * norms
    shape = (-1, *(1 for _ in weight.shape[1:]))
    factors["dora_scale"] = magnitude.reshape(shape)
    return factors, changed * (magnitude / norms).reshape(shape) - weight


def difference(weight: torch.Tensor, filled: Filled) -> tuple[Tensors, torch.Tensor]:
    change = filled(*weight.shape)
    return {"w_norm" if weight.ndim == 1 else "diff": change}, change


def oft(weight: torch.Tensor, filled: Filled) -> tuple[Tensors, torch.Tensor]:
    blocks, scales = filled(3, 4, 4) * 5, 1.0 + filled(12)
    skew = blocks - blocks.transpose(1, 2)
    rotations = [(torch.eye(4) + q) @ torch.linalg.inv(torch.eye(4) - q) for q in skew]
    turned = scales[:, None] * torch.block_diag(*rotations).T @ weight.flatten(1)
    factors = {"oft_blocks": blocks, "rescale": scales.reshape(-1, *(1 for _ in weight.shape[1:]))}
    return factors, turned.reshape(weight.shape) - weight


def oft_v2(weight: torch.Tensor, filled: Filled) -> tuple[Tensors, torch.Tensor]:
    values = filled(weight[0].numel() // 4, 6)
    skew = torch.zeros(len(values), 4, 4)
    rows, columns = torch.triu_indices(4, 4, 1)
    skew[:, rows, columns] = values
    skew -= skew.transpose(1, 2).clone()
    powers = [torch.linalg.matrix_power(skew, n) for n in range(5)]
    rotations = torch.block_diag(*(powers[0] + 2 * (powers[1] + powers[2] + powers[3]) + powers[4]))
    return {"oft_R.weight": values}, (weight.flatten(1) @ rotations.T).reshape(weight.shape) - weight


KINDS: dict[str, Callable[[torch.Tensor, Filled], tuple[Tensors, torch.Tensor]]] = {
    "lora": lora,
    "tucker": tucker,
    "loha": loha,
    "lokr": lokr,
    "oft": oft,
    "oft_v2": oft_v2,
    "dora": dora,
    "difference": difference,
}


@pytest.mark.parametrize("layer", ["linear", "channels_last", "conv", "pointwise", "layer_norm", "group_norm"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_it_acts_as_the_merged_weight(kind: str, layer: str, has_bias: bool) -> None:
    if "norm" in layer and kind != "difference":
        return  # only differences of norms exist
    module, plain, x, filled = block(), block(), inputs(layer), Filled()
    own = plain[layer]
    assert isinstance(own.weight, torch.Tensor)
    assert isinstance(own.bias, torch.Tensor)
    factors, change = KINDS[kind](own.weight.detach(), filled)
    if has_bias:
        factors["b_norm" if "norm" in layer else "diff_b"] = filled(len(own.bias))
    assert can_act({name: tuple(factor.shape) for name, factor in factors.items()})
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    attach_kept({"unet": module}, [AdapterLayer("unet", layer, factors, 3.0)], where="file")
    with torch.no_grad():
        before = own(x)
        own.weight += change
        if has_bias:
            own.bias += next(t for n, t in factors.items() if n in ("b_norm", "diff_b"))
    torch.testing.assert_close(module[layer](x), own(x), rtol=1e-4, atol=1e-5)
    assert (own(x) - before).abs().max() > 1e-2
    # The model's own weights stay, and nothing is trained.
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert set(dict(module.named_parameters())) == state.keys()


@pytest.mark.parametrize("layer", ["linear", "conv"])
def test_a_bias_alone_acts_beside_a_lora_that_is_trained(layer: str) -> None:
    module, plain, x = block(), block(), inputs(layer)
    bias = Filled()(12)
    attach_kept({"unet": module}, [AdapterLayer("unet", layer, {"diff_b": bias})], where="file")
    adapter = attach_lora("unet", module, [layer], LoraShape(2, 2.0, 0.0, torch.float32), seed=0)
    plain[layer].bias.data += bias
    torch.testing.assert_close(module[layer](x), plain[layer](x))
    assert len(adapter.parameters()) == 2
    with adapter.disabled():  # the reference is the model with what is kept
        torch.testing.assert_close(module[layer](x), plain[layer](x))


def test_a_change_that_is_not_known_is_left_alone() -> None:
    module, plain, x = block(), block(), inputs("linear")
    layer = AdapterLayer("unet", "linear", {"oft_blocks": Filled()(1, 2, 6, 6)})  # BOFT
    assert not can_act(layer.shapes)
    attach_kept({"unet": module}, [layer], where="file")
    assert torch.equal(module["linear"](x), plain["linear"](x))


@pytest.mark.parametrize(
    "name", ["diff", "diff_b", "hada_w1_a", "lokr_w1", "dora_scale", "oft_blocks", "oft_R.weight", "rescale"]
)
def test_factors_that_do_not_fit_are_refused(name: str) -> None:
    kinds = {"hada_w1_a": loha, "lokr_w1": lokr, "dora_scale": dora, "oft_blocks": oft, "rescale": oft}
    kinds["oft_R.weight"] = oft_v2
    module = block()
    factors, _ = kinds.get(name, difference)(module["linear"].weight.detach(), Filled())
    factors = {**factors, name: Filled()(5, 7, 7) if name == "oft_blocks" else Filled()(5, 7)}
    with pytest.raises(DarkroomError, match=r"file does not fit this model: the weight of unet\.linear is"):
        attach_kept({"unet": module}, [AdapterLayer("unet", "linear", factors, 3.0)], where="file")


def test_the_fingerprint_is_that_of_names_values_and_strength() -> None:
    factors = {"diff": torch.ones(2, 2)}
    layers = [
        AdapterLayer("unet", "a", factors),
        AdapterLayer("unet", "b", factors),
        AdapterLayer("unet", "a", factors, 2.0),
        AdapterLayer("unet", "a", {"diff": torch.ones(2, 2) * 2}),
        AdapterLayer("unet", "a", {"diff": torch.ones(4, 1)}),
    ]
    assert len({kept_fingerprint([layer]) for layer in layers}) == len(layers)
    assert kept_fingerprint(layers[:2]) == kept_fingerprint(layers[1::-1])


MEMORY = {
    "blocks": PartMemory("block"),
    "whole": PartMemory("whole", offload_activations=True),
    "layers": PartMemory("block", offload_fraction=0.5),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("saving", MEMORY)
@pytest.mark.parametrize("is_guarded", [False, True])
def test_gradients_stay_bit_equal_whatever_saves_memory(any_model: Path, saving: str, is_guarded: bool) -> None:
    family, adapters = with_lora(any_model)
    filled = Filled(5)
    norms = (nn.LayerNorm, nn.GroupNorm)
    kept = []
    for part, path in places(family, *norms):
        weight = family.parts[part].module.get_submodule(path).weight
        assert isinstance(weight, torch.Tensor)
        kept.append(AdapterLayer(part, path, {"w_norm": filled(*weight.shape)}))
    parameters: Parameters = {n: p for adapter in adapters for n, p in adapter.parameters().items()}
    without = gradients(family, parameters, PartMemory(), loss=predicted)
    attach_kept({name: part.module for name, part in family.parts.items()}, kept, where="file")
    plain = gradients(family, parameters, PartMemory(), loss=predicted)
    resident = frozenset(name.partition(".")[2] for name in parameters)
    memory = MEMORY[saving]
    memory = PartMemory(memory.mode, memory.offload_activations, memory.offload_fraction, resident)
    saved = gradients(family, parameters, memory, loss=predicted, guarded=is_guarded)
    assert any(not torch.equal(a, b) for a, b in zip(plain.values(), without.values(), strict=True))  # type: ignore[arg-type]
    assert all(torch.equal(plain[name], saved[name]) for name in plain)  # type: ignore[arg-type]


def test_16_bit_weights_are_not_rounded() -> None:
    """A change far below the last bit of a bfloat16 weight still has its effect."""
    layer = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    nn.init.ones_(layer.weight)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    change = signs.repeat(4, 1) * 1e-4
    assert torch.equal(layer.weight + change.bfloat16(), layer.weight)
    attach_kept({"unet": nn.ModuleDict({"layer": layer})}, [AdapterLayer("unet", "layer", {"diff": change})], where="a")
    assert layer(signs[None].bfloat16())[0, 0].item() == pytest.approx(4e-4, rel=1e-2)
