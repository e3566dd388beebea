"""LoRA's options: ranks by layer, rsLoRA, PiSSA, LoRA+, rank and module dropout, against their definitions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from modules.adapters.changes import weight_change
from modules.adapters.lokr import Lokr
from modules.adapters.lokr_layers import LOKR_KIND
from modules.adapters.lora import LORA, Lora
from modules.adapters.lora_layers import LORA_KIND, LoraAdapter
from modules.adapters.lora_product import initial_product
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.headers import read_header
from modules.settings.edit import set_path
from modules.system.devices import CPU, seeded_global_rng
from tests.builders.configs import small_config
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.events import BackupSaved, StepFinished
from trainer.preflight import check

LAYERS = ["linear", "conv", "wide"]


def block(dtype: torch.dtype = torch.float32) -> nn.ModuleDict:
    torch.manual_seed(0)
    layers = {
        "linear": nn.Linear(24, 64),
        "conv": nn.Conv2d(24, 64, 3, stride=2, padding=1),
        "wide": nn.Linear(600, 300),
    }
    return nn.ModuleDict(layers).to(dtype)


def inputs(layer: str, batch: int = 2) -> torch.Tensor:
    shapes = {"linear": (batch, 5, 24), "conv": (batch, 24, 9, 7), "wide": (batch, 600)}
    return torch.randn(shapes[layer], generator=torch.Generator().manual_seed(2))


def attached(module: nn.Module, *, moves: bool = False, start: Any = (), **settings: Any) -> LoraAdapter:
    adapter = LORA_KIND.attach("unet", module, LAYERS, Lora(**settings), seed=1, start=start, where="file")
    generator = torch.Generator().manual_seed(3)
    for parameter in adapter.parameters().values() if moves else ():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.05
    return adapter


def stored(adapter: Any) -> dict[str, AdapterLayer]:
    layers = adapter.stored_layers({n: p.detach() for n, p in adapter.parameters().items()})
    return {layer.path: layer for layer in layers}


def assert_is_merged(module: nn.ModuleDict, layers: dict[str, AdapterLayer]) -> None:
    """Assert that each layer is that of the original model with the file's change added to its weight."""
    merged = block()
    with torch.no_grad():
        for path, layer in layers.items():
            change = weight_change(layer.factors, layer.alpha, merged[path].weight)
            assert change is not None
            assert change.abs().max() > 1e-3
            merged[path].weight += change
            torch.testing.assert_close(module[path](inputs(path)), merged[path](inputs(path)), rtol=1e-4, atol=1e-5)


# -- ranks and strengths


def test_files_hold_the_rank_and_the_strength_of_each_layer() -> None:
    module = block()
    settings = {"rank": 4, "alpha": 2.0, "conv_rank": 2, "conv_alpha": 3.0, "layer_ranks": "wide = 8"}
    adapter = attached(module, moves=True, **settings)
    strengths = {path: (layer.r["default"], layer.scaling["default"]) for path, layer in adapter.layers()}
    assert strengths == {"linear": (4, 2 / 4), "conv": (2, 3 / 2), "wide": (8, 4 / 8)}
    layers = stored(adapter)
    assert {path: layer.rank for path, layer in layers.items()} == {"linear": 4, "conv": 2, "wide": 8}
    assert len({layer.alpha for layer in layers.values()}) == 1  # diffusers ignores alphas of a few layers
    assert_is_merged(module, layers)


def test_a_rank_stabilized_lora_has_its_strength_in_every_program() -> None:
    module = block()
    settings = {"rank": 4, "alpha": 2.0, "conv_rank": 9, "layer_ranks": "wide = 16:5", "rank_stabilized": True}
    adapter = attached(module, moves=True, **settings)
    layers = stored(adapter)
    strengths = {path: layer.scaling["default"] for path, layer in adapter.layers()}
    assert strengths == pytest.approx({"linear": 2 / math.sqrt(4), "conv": 2 / math.sqrt(9), "wide": 5 / math.sqrt(16)})
    assert_is_merged(module, layers)
    # A start from its file keeps the ranks and the function, whatever is set.
    again = block()
    attached(again, start=list(layers.values()), rank=2, alpha=1.0)
    for path in LAYERS:
        torch.testing.assert_close(again[path](inputs(path)), module[path](inputs(path)), rtol=1e-4, atol=1e-5)


def test_a_lokr_has_them_too() -> None:
    settings = Lokr(rank=1, alpha=2.0, layer_ranks="wide = 4:3", rank_stabilized=True)
    layers = stored(LOKR_KIND.attach("unet", block(), LAYERS, settings, seed=1))
    assert layers["wide"].factors["lokr_w2_b"].shape[0] == 4
    assert layers["wide"].alpha == pytest.approx(3 * math.sqrt(4))
    assert layers["linear"].alpha == 2.0


# -- PiSSA


def test_pissa_begins_as_the_principal_part_of_each_weight() -> None:
    module, plain = block(), block()
    adapter = attached(module, rank=4, alpha=2.0, init="pissa")
    for path, layer in adapter.layers():
        down, up = (layer.get_submodule(n)["default"].weight.flatten(1) for n in ("lora_A", "lora_B"))
        weight = plain[path].weight.detach().flatten(1)
        left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
        principal = left[:, :4] @ sizes[:4].diag() @ right[:4]  # eq. 2 of the paper
        best, found = ((weight - part).norm() for part in (principal, layer.scaling["default"] * (up @ down).detach()))
        assert found == pytest.approx(best.item(), rel=1e-2 if path == "wide" else 1e-5)
        if path != "wide":  # its values are too alike for a randomized method to part them
            torch.testing.assert_close(layer.scaling["default"] * (up @ down).detach(), principal, rtol=1e-4, atol=1e-5)
        assert torch.equal(module[path](inputs(path)), plain[path](inputs(path)))


def test_pissa_trains_the_residual_with_the_product_and_is_a_file_for_the_original_model() -> None:
    module = block()
    adapter = attached(module, rank=4, alpha=2.0, init="pissa")
    begun = {path: initial_product(layer).factors for path, layer in adapter.layers()}  # type: ignore[union-attr]
    for parameter in adapter.parameters().values():
        parameter.data += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.05
    layers, merged = stored(adapter), block()
    assert {layer.rank for layer in layers.values()} == {8}
    assert_is_merged(module, layers)
    with torch.no_grad():
        for path, layer in adapter.layers():
            down, up = (layer.get_submodule(n)["default"].weight.flatten(1) for n in ("lora_A", "lora_B"))
            own = merged[path].weight
            residual = own - 0.5 * (begun[path][1].flatten(1) @ begun[path][0].flatten(1)).reshape(own.shape)
            own.copy_(residual + 0.5 * (up @ down).reshape(own.shape))  # eq. 5 of the paper
            torch.testing.assert_close(module[path](inputs(path)), merged[path](inputs(path)), rtol=1e-4, atol=1e-5)
    plain = block()
    with adapter.disabled():
        assert all(torch.equal(module[p](inputs(p)), plain[p](inputs(p))) for p in LAYERS)


def test_pissa_is_the_same_each_time_and_goes_on_as_a_lora() -> None:
    one, two = (attached(block(), rank=4, init="pissa") for _ in range(2))
    assert_equal_tensors(dict(one.parameters()), dict(two.parameters()))
    module = block()
    layers = stored(attached(module, moves=True, rank=4, init="pissa"))
    again = block()
    start = [layers["linear"], layers["wide"]]
    onwards = attached(again, start=start, rank=4, init="pissa")
    assert [initial_product(layer) is None for _, layer in onwards.layers()] == [True, False, True]
    for path in ("linear", "wide"):
        torch.testing.assert_close(again[path](inputs(path)), module[path](inputs(path)), rtol=1e-4, atol=1e-5)


def test_pissa_of_a_rank_above_that_of_a_weight() -> None:
    module = block()
    layers = stored(attached(module, moves=True, rank=40, init="pissa"))
    assert layers["linear"].rank == 80
    assert_is_merged(module, layers)


# -- LoRA+


def test_the_ratio_is_that_of_the_up_matrices() -> None:
    names = attached(block(), rank=4, decompose=True).parameters()
    ratios = LORA.rate_ratios(Lora(lora_plus_ratio=16.0), names)
    assert ratios == {f"unet.{path}.lora_B.default.weight": 16.0 for path in LAYERS}
    assert LORA.rate_ratios(Lora(), names) == {}


# -- dropouts


def drawn(module: nn.Module, x: torch.Tensor, num: int = 200) -> torch.Tensor:
    with seeded_global_rng(7, CPU), torch.no_grad():
        return torch.stack([module(x) for _ in range(num)])


@pytest.mark.parametrize("path", ["linear", "conv"])
def test_rank_dropout_leaves_out_ranks_of_each_sample(path: str) -> None:
    module, x = block(), inputs(path, batch=3)
    adapter = attached(module, moves=True, rank=3, alpha=3.0, rank_dropout=0.4)
    down, up = stored(adapter)[path].factors.values()
    of_masks = []
    for mask in range(8):  # every set of ranks that may be left
        kept = torch.tensor([float(mask >> n & 1) for n in range(3)])
        merged = block()[path]
        merged.weight.data += ((up.flatten(1) * kept / 0.6) @ down.flatten(1)).reshape(merged.weight.shape)
        of_masks.append(merged(x).detach())
    seen = set()
    for outputs in drawn(module.train()[path], x, 30):
        for number, output in enumerate(outputs):
            [mask] = [m for m in range(8) if torch.allclose(of_masks[m][number], output, atol=1e-5)]
            seen.add(mask)
    assert len(seen) > 4
    module.eval()
    assert torch.equal(module[path](x), module[path](x))


@pytest.mark.parametrize("kind", ["lora", "lokr"])
@pytest.mark.parametrize("decompose", [False, True])
def test_module_dropout_leaves_out_the_layer(kind: str, decompose: bool) -> None:
    module, plain, x = block(), block(), inputs("linear")
    settings = {"rank": 2, "module_dropout": 0.3, "decompose": decompose}
    if kind == "lora":
        attached(module, moves=True, **settings)
    else:
        for parameter in LOKR_KIND.attach("unet", module, LAYERS, Lokr(**settings), seed=1).parameters().values():
            parameter.data += 0.1
    module.eval()
    with torch.no_grad():
        whole, without = module["linear"](x), plain["linear"](x)
    outputs = drawn(module.train()["linear"], x)
    is_left_out = torch.tensor([torch.allclose(output, without, atol=1e-6) for output in outputs])
    assert all(torch.allclose(output, whole, atol=1e-6) for output in outputs[~is_left_out])
    assert is_left_out.float().mean().item() == pytest.approx(0.3, abs=0.1)


def test_rank_dropout_of_a_lokr_leaves_out_outputs() -> None:
    module, plain, x = block(), block(), inputs("conv")
    adapter = LOKR_KIND.attach("unet", module, LAYERS, Lokr(rank=2, rank_dropout=0.25), seed=1)
    for parameter in adapter.parameters().values():
        parameter.data += 0.1
    with torch.no_grad():
        change = module.eval()["conv"](x) - plain["conv"](x)
        ratios = (drawn(module.train()["conv"], x, 50) - plain["conv"](x)) / change
    is_left_out = ratios.abs().amax((-1, -2)) < 0.01
    expected = torch.where(is_left_out, 0.0, 1 / 0.75)[..., None, None].expand_as(ratios)
    torch.testing.assert_close(ratios, expected, rtol=1e-2, atol=1e-2)
    assert is_left_out.float().mean().item() == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("name", ["dropout", "rank_dropout", "module_dropout"])
def test_a_method_that_repeats_predictions_refuses_each_dropout(name: str) -> None:
    config, _ = set_path(Config(), "training.method", {"name": "ddpo"})
    config, _ = set_path(config, f"adapter.{name}", 0.1)
    assert f"adapter.{name}" in [p.path for p in problems_of(config) if p.severity == "error"]


# -- whole runs


def of_all_kinds(folder: Path, *, model: Path, images: Path, **adapter: Any) -> Config:
    config = small_config(
        folder, model=model, images=images,
        training={"learning_rate": 0.01, "epochs": 1, "low_precision_updates": "master"},
        backup={"every": {"n": 1, "unit": "step"}, "keep": 0},
        parts={"unet": {"checkpointing": "block"}},
        output={"dtype": "float32"},
    )  # fmt: skip
    options = {
        "rank": 4, "alpha": 2.0, "layers": "all", "conv_rank": 2,
        "layer_ranks": "attn2 = 3\ntext_encoder. = 1\nre:proj_in$ = 0",
        "rank_stabilized": True, "init": "pissa", "decompose": True, "lora_plus_ratio": 4.0, "dropout": 0.1,
        "rank_dropout": 0.2, "module_dropout": 0.2, "dtype": "float16", **adapter,
    }  # fmt: skip
    changed, problems = set_path(config, "adapter", {"name": "lora", **options})
    assert not problems
    return changed


@pytest.mark.full
def test_a_run_with_all_of_it_resumes_bit_equal(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = of_all_kinds(tmp_path, model=tiny_sd, images=images)
    assert not check(config).errors
    straight = run(config)
    steps = straight.of(StepFinished)
    assert all(s.gradient_norm for s in steps)
    backup = next(Path(b.path) for b in straight.of(BackupSaved) if b.step == steps[-1].step // 2)
    resumed = run(config, resume_from=backup)
    assert_equal_tensors(resumed.weights, straight.weights)
    assert_equal_tensors(*(file_of(ran) for ran in (resumed, straight)))
    tensors = file_of(straight)
    ranks = {name: len(t) for name, t in tensors.items() if name.endswith("lora_down.weight")}
    assert {rank for name, rank in ranks.items() if "attn2" in name} == {6}
    assert {rank for name, rank in ranks.items() if name.startswith("lora_te_")} == {2}
    assert not any("proj_in" in name for name in ranks)
    preview = check(config).preview
    assert preview is not None
    assert sum(len(part.layers) for part in preview.trained) == len(ranks)
    metadata = read_header(Path(straight.finished.model_path)).metadata
    for text in ('"rs_lora": "True"', '"dora_wd": "True"', '"init": "pissa"', '"loraplus_lr_ratio": "4"'):
        assert text in metadata["ss_network_args"]


def file_of(ran: Ran) -> dict[str, torch.Tensor]:
    return load_file(Path(ran.finished.model_path))


def test_a_line_that_takes_no_layer_is_an_error(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = of_all_kinds(tmp_path, model=tiny_sd, images=images, layer_ranks="attn7 = 3")
    assert [e.path for e in check(config).errors] == ["adapter.layer_ranks"]


def test_a_file_with_magnitudes_needs_a_run_with_dora(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    down, up, scale = torch.ones(4, 32), torch.ones(32, 4), torch.ones(32, 1)
    name = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    factors = {"lora_down.weight": down, "lora_up.weight": up, "alpha": torch.tensor(4.0), "dora_scale": scale}
    file = tmp_path / "dora.safetensors"
    save_file({f"{name}.{factor}": tensor for factor, tensor in factors.items()}, file)
    for is_on in (True, False):
        config = small_config(tmp_path, model=tiny_sd, images=images, adapter={"decompose": is_on})
        config, _ = set_path(config, "adapter.start_from", str(file))
        errors = [e for e in check(config).errors if e.path == "adapter.start_from"]
        assert ([e.advice for e in errors] == ["Switch DoRA on."]) is not is_on
