"""LoKr: what it adds to a weight, against LyCORIS' formula and peft's layers, and its files."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoKrConfig, inject_adapter_in_model
from safetensors.torch import load_file
from torch import nn

from modules.adapters.lokr import Lokr
from modules.adapters.lokr_layers import LOKR_KIND, LokrAdapter
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.data.dataset import Dataset
from modules.families.kinds.identify import identify
from modules.settings.edit import set_path
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.events import BackupSaved, StepFinished
from trainer.export.adapter import AdapterExporter
from trainer.preflight import check
from trainer.run.standalone import put_adapter_on

FORMS: dict[str, dict[str, Any]] = {
    "low rank": {"rank": 2, "alpha": 3.0},
    "both low rank": {"rank": 1, "alpha": 3.0, "decompose_both": True},
    "full matrices": {"rank": 2, "alpha": 3.0, "full_matrix": True},
    "Tucker": {"rank": 2, "alpha": 3.0, "use_tucker": True},
    "factor of 4": {"rank": 2, "alpha": 3.0, "factor": 4},
}
LAYERS = ["linear", "conv"]
EMPTY, NOW = Dataset((), (), 1), datetime(2026, 1, 2)


def block() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"linear": nn.Linear(24, 64), "conv": nn.Conv2d(24, 64, 3, stride=2, padding=1)})


def inputs(layer: str) -> torch.Tensor:
    shape = (2, 5, 24) if layer == "linear" else (2, 24, 9, 7)
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def attached(module: nn.Module, *, zeros: bool = False, **settings: Any) -> LokrAdapter:
    adapter = LOKR_KIND.attach("unet", module, LAYERS, Lokr(**settings), seed=1)
    generator = torch.Generator().manual_seed(3)
    for parameter in adapter.parameters().values():
        if not zeros and not parameter.any():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return adapter


def delta_of(adapter: LokrAdapter, layer: str, shape: torch.Size) -> torch.Tensor:
    """What LyCORIS adds to a weight: the five lines of its formula."""
    w = {n.removeprefix("lokr_"): p for n, p in adapter.deltas[layer].named_parameters()}
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
    for name, factor in adapter.deltas[layer].named_parameters():
        getattr(theirs[layer], name)["default"].data = factor.detach().clone()
    torch.testing.assert_close(module[layer](inputs(layer)), theirs[layer](inputs(layer)), rtol=1e-4, atol=1e-5)


def with_adapter(config: Config, **settings: Any) -> Config:
    changed, problems = set_path(config, "adapter", settings)
    assert not problems
    return changed


def backup_of(ran: Ran, step: int) -> Path:
    return next(Path(b.path) for b in ran.of(BackupSaved) if b.step == step)


@pytest.fixture(scope="module")
def trained(tiny_sdxl: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Ran]:
    """A run with everything on that draws at random, and a backup after each step."""
    config = small_config(
        tmp_path_factory.mktemp("lokr"), model=tiny_sdxl, images=images,
        training={"learning_rate": 0.02, "ema": {"mode": "train_device"}},
        backup={"every": {"n": 1, "unit": "step"}, "keep": 0},
        parts={"unet": {"checkpointing": "block", "offload_activations": True, "offload_fraction": 0.5}},
        general={"temp_device": "cpu:1"},
        output={"dtype": "float32"},
    )  # fmt: skip
    config = with_adapter(config, name="lokr", rank=1, alpha=2.0, layers="all", dropout=0.2, use_tucker=True)
    return config, run(config)


def test_it_learns_and_resumes_bit_equal(trained: tuple[Config, Ran]) -> None:
    config, straight = trained
    steps = straight.of(StepFinished)
    assert {"unet", "text_encoder", "text_encoder_2"} <= {n.partition(".")[0] for n in straight.weights}
    assert all(s.gradient_norm for s in steps)
    resumed = run(config, resume_from=backup_of(straight, steps[-1].step // 2))
    assert_equal_tensors(resumed.weights, straight.weights)
    assert_equal_tensors(*(load_file(Path(r.finished.model_path)) for r in (resumed, straight)))


def test_its_file_is_recognised_and_says_what_it_is(trained: tuple[Config, Ran]) -> None:
    path = Path(trained[1].finished.model_path)
    kind, tensors = identify(path), load_file(path)
    assert (kind.kind, kind.model, kind.facts["adapter"], kind.facts["form"]) == ("lora", "sdxl", "LoKr", "kohya")
    layers = {name.split(".", 1)[0] for name in tensors}
    assert kind.facts["layers"] == str(len(layers))
    for layer in layers:
        assert tensors[f"{layer}.alpha"].shape == ()
        assert any(f"{layer}.{name}" in tensors for name in ("lokr_w1", "lokr_w1_a"))
        assert layer.startswith(("lora_unet_", "lora_te1_text_model_", "lora_te2_text_model_"))


def test_saved_loaded_saved_is_bit_equal(trained: tuple[Config, Ran], tmp_path: Path) -> None:
    config, ran = trained
    path = Path(ran.finished.model_path)
    family = load_tiny(Path(config.model.base_model))
    adapters = put_adapter_on(family, path)
    values = {name: p.detach() for a in adapters for name, p in a.parameters().items()}
    again = tmp_path / "again.safetensors"
    exporter = AdapterExporter(adapters, family.lora_naming, config, EMPTY)
    exporter.save(again, values, now=NOW, step=1, epoch=1)
    assert_equal_tensors(load_file(again), load_file(path))


def test_a_file_of_another_kind_is_refused_before_the_run(trained: tuple[Config, Ran], tmp_path: Path) -> None:
    config, ran = trained
    file = ran.finished.model_path
    as_lora = with_adapter(config, name="lora", start_from=file)
    [error] = check(as_lora).errors
    assert (error.path, "is not a LoRA, the adapter type of this run" in error.message) == ("adapter.start_from", True)


def test_the_factors_of_the_file_decide(trained: tuple[Config, Ran], tmp_path: Path) -> None:
    config, ran = trained
    before = load_file(ran.finished.model_path)
    destination = {"destination": str(tmp_path / "onwards.safetensors")}
    other = {"start_from": ran.finished.model_path, "factor": 2, "rank": 3}
    after = load_file(run(laid_over(config, {"adapter": other, "output": destination})).finished.model_path)
    assert {name: tensor.shape for name, tensor in before.items()} == {n: t.shape for n, t in after.items()}


def test_the_diffusers_form_is_refused(trained: tuple[Config, Ran]) -> None:
    config = laid_over(trained[0], {"output": {"format": "diffusers"}})
    assert [p.path for p in problems_of(config) if p.severity == "error"] == ["output.format"]
