"""Runs whose weights are bfloat16 compute without autocast, and their LoRA in few operations, with close results."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modules.adapters.loha import Loha
from modules.adapters.lora import Lora
from modules.adapters.lora_forward import siblings_of
from modules.adapters.lora_layers import LORA_KIND, LoraAdapter
from modules.config.usage import needs_autocast
from modules.data.buckets import Size
from modules.data.conditioning import SizeConditioning
from modules.families.protocol import ModelFamily, PartMemory
from modules.quantization.linear import quantize_layers
from modules.quantization.registry import FORMATS, ChosenFormat
from modules.settings.layer_filter import EVERYTHING
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.flow_models import FLOW_MODELS
from tests.builders.pipelines import noise_of
from tests.builders.runs import run
from trainer.events import StepFinished
from trainer.run.reading import load_family

BF16, SINGLE = torch.bfloat16, torch.float32
IN_BFLOAT16: dict[str, Any] = {"training": {"precision": "bfloat16"}, "parts": {"unet": {"dtype": "bfloat16"}}}


class Layers(nn.Module):
    """Layers with a LoRA: a linear one with and one without a bias, and convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 32), nn.Linear(32, 16, bias=False)
        self.wide, self.narrow = nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.second(self.first(x).tanh()), self.narrow(self.wide(image).tanh())


def adapted(weights: torch.dtype, quantizes: str = "", **settings: Any) -> tuple[Layers, LoraAdapter]:
    torch.manual_seed(0)
    module = Layers().to(weights)
    if quantizes:
        quantize_layers(module, ChosenFormat(FORMATS[quantizes], EVERYTHING))
    chosen = Lora.model_validate({"rank": 4, "alpha": 2.0, **settings})
    adapter = LORA_KIND.attach("unet", module, ["first", "second", "wide", "narrow"], chosen, seed=1)
    for weight in adapter.parameters().values():
        nn.init.normal_(weight, std=0.3)
    return module.train(), adapter


def results(module: nn.Module, dtype: torch.dtype, *, autocast: bool = False) -> dict[str, torch.Tensor]:
    """The outputs, and the gradients of the inputs and of the factors, in float32."""
    torch.manual_seed(2)
    inputs = [torch.randn(2, 3, 24), torch.randn(2, 4, 6, 6)]
    inputs = [x.to(dtype).requires_grad_() for x in inputs]
    module.zero_grad()
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype) if autocast else nullcontext():
        outputs = module(*inputs)
    sum(y.float().square().sum() for y in outputs).backward()
    factors = {n: p.grad for n, p in module.named_parameters() if p.requires_grad}
    named = {**dict(zip(("x", "image"), [x.grad for x in inputs], strict=True)), **factors}
    assert all(g is not None for g in named.values())
    return {
        **{f"out {i}": y.detach().float() for i, y in enumerate(outputs)},
        **{n: g.float() for n, g in named.items()},
    }


def assert_close(ours: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor], rel: float) -> None:
    """Each differs by less than a share of its norm."""
    assert ours.keys() == others.keys()
    for name, tensor in ours.items():
        assert (tensor - others[name]).norm() <= rel * others[name].norm(), name


@pytest.mark.parametrize("settings", [{}, {"alpha": 4.0}, {"dropout": 0.5}])
def test_the_fused_lora_is_the_plain_formula(settings: dict[str, Any]) -> None:
    module, adapter = adapted(SINGLE, **settings)
    plain = results(module, SINGLE)
    adapter.compute_in_input_dtype(BF16)
    assert_close(results(module, SINGLE), plain, rel=1e-5)
    module, adapter = adapted(BF16, **settings)
    autocast = results(module, BF16, autocast=True)
    adapter.compute_in_input_dtype(BF16)
    ours = results(module, BF16)
    assert_close(ours, autocast, rel=0.03)
    assert {p.grad.dtype for p in adapter.parameters().values() if p.grad is not None} == {adapter.shape.dtype}
    with adapter.disabled():
        base = module(torch.ones(2, 3, 24, dtype=BF16), torch.ones(2, 4, 6, 6, dtype=BF16))
    bare = Layers().to(BF16)
    layers = {n: bare.get_submodule(n) for n in ("first", "second", "wide", "narrow")}
    for name, layer in layers.items():
        layer.load_state_dict(module.get_submodule(name).get_base_layer().state_dict())  # type: ignore[operator]
    for ours_out, other in zip(
        base, bare(torch.ones(2, 3, 24, dtype=BF16), torch.ones(2, 4, 6, 6, dtype=BF16)), strict=True
    ):
        assert torch.equal(ours_out, other)


@pytest.mark.parametrize("quantizes", ["int8", "int8_w8a8", "nfloat4"])
def test_the_fused_lora_on_quantized_layers(quantizes: str) -> None:
    module, adapter = adapted(BF16, quantizes)
    autocast = results(module, BF16, autocast=True)
    adapter.compute_in_input_dtype(BF16)
    assert_close(results(module, BF16), autocast, rel=0.03)


def test_layers_that_something_changes_are_called() -> None:
    """An offloaded layer has another forward pass, and a kept layer of a file a hook."""
    module, adapter = adapted(SINGLE)
    base = module.first.get_base_layer()  # type: ignore[operator]
    base.register_forward_hook(lambda layer, inputs, output: output * 3)
    plain = results(module, SINGLE)
    adapter.compute_in_input_dtype(BF16)
    assert_close(results(module, SINGLE), plain, rel=1e-5)


def conditioning(family: ModelFamily) -> Any:
    sizes = [SizeConditioning.whole(Size(64, 64))]
    return family.with_size_conditioning(family.encode_prompts(["a disc"]), sizes)


@pytest.mark.parametrize(
    "name", ["tiny_sd", "tiny_sdxl", *(pytest.param(n, marks=pytest.mark.full) for n in FLOW_MODELS)]
)
def test_a_model_in_bfloat16_is_nearly_the_one_under_autocast(
    name: str, request: pytest.FixtureRequest, images: Path, tmp_path: Path
) -> None:
    """Predictions and gradients; recomputed blocks give the same ones."""
    config = small_config(tmp_path, model=request.getfixturevalue(name), images=images)
    denoiser = config.family.denoiser
    in_bf16 = {p.name: {"dtype": "bfloat16"} for p in config.family.parts}
    family = load_family(config.model, laid_over(config, {"parts": in_bf16}).part)
    module = family.parts[denoiser.name].module
    targets = [n for n, m in module.named_modules() if type(m) is nn.Linear and ("attn" in n or "attention" in n)]
    adapter = LORA_KIND.attach(denoiser.name, module, targets[:12], Lora(rank=2, alpha=2.0), seed=0)
    for weight in adapter.parameters().values():
        nn.init.normal_(weight, std=0.05)
    noisy, text = noise_of(family, batch=1, seed=0), conditioning(family)

    def found(context: Any, mode: Any = "off") -> dict[str, torch.Tensor]:
        family.set_memory({denoiser.name: PartMemory(mode)}, train_device=CPU, temp_device=CPU)
        module.zero_grad()
        with context:
            output = family.predict(noisy, torch.tensor([250]), text)
        output.float().square().mean().backward()
        gradients = torch.cat([p.grad.flatten() for p in adapter.parameters().values() if p.grad is not None])
        assert gradients.any()
        return {"output": output.detach().float(), "gradients": gradients.clone()}

    autocast = found(torch.autocast("cpu", BF16))
    adapter.compute_in_input_dtype(BF16)
    ours = found(nullcontext())
    assert_close(ours, autocast, rel=0.1)
    again = found(nullcontext(), "block")
    assert all(torch.equal(again[n], ours[n]) for n in ours)
    together = {s for _, layer in adapter.layers() if (s := siblings_of(layer)) is not None}
    assert together
    assert all(siblings.layers and not siblings.is_waiting for siblings in together)  # they did read one input


def test_when_autocast_is_needed(tmp_path: Path) -> None:
    base = small_config(tmp_path, model=tmp_path, images=tmp_path)
    frozen = {"text_encoder": {"train": False}}
    native = laid_over(base, {**IN_BFLOAT16, "parts": {**IN_BFLOAT16["parts"], **frozen}})
    assert not needs_autocast(native)
    assert not needs_autocast(laid_over(native, {"parts": {"unet": {"dtype": "int8"}}}))
    for changes in (
        {"training": {"precision": "float16"}, "parts": {"unet": {"dtype": "float16"}}},
        {"training": {"precision": "float32"}},
        {"training": {"trains": "full"}},
        {"parts": {"unet": {"dtype": "float32"}}},
        {"parts": {"text_encoder": {"train": True, "dtype": "float32"}}},
        {"adapter": {"decompose": True}},
        {"adapter": {"init": "pissa"}},
        {"adapter": {"module_dropout": 0.1}},
    ):
        assert needs_autocast(laid_over(native, changes)), changes
    assert needs_autocast(native.model_copy(update={"adapter": Loha()}))


def test_a_run_in_bfloat16_has_no_autocast(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its losses are those of a run under autocast, nearly."""
    parts = {"unet": {"dtype": "bfloat16"}, "text_encoder": {"dtype": "bfloat16", "train": False}}
    config = small_config(tmp_path, model=tiny_sd, images=images, training={"precision": "bfloat16"}, parts=parts)
    seen: list[bool] = []
    predict = load_family(config.model, config.part).__class__.predict

    def watched(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return predict(self, *args, **kwargs)

    def losses() -> list[float]:
        return [step.loss or 0.0 for step in run(config).of(StepFinished)]

    monkeypatch.setattr("modules.families.sd.model.StableDiffusion.predict", watched)
    ours = losses()
    assert seen
    assert not any(seen)
    for place in ("trainer.run.execute", "trainer.run.model"):
        monkeypatch.setattr(f"{place}.needs_autocast", lambda config: True)
    seen.clear()
    assert losses() == pytest.approx(ours, rel=0.02)
    assert seen
    assert all(seen)
