"""Attention implementations: they agree, a recomputation uses the same one, and missing ones are refused by name."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.models import attention_dispatch
from torch.nn.attention import SDPBackend

from modules.config.codec import decode
from modules.families.attention import ATTENTIONS, usable_attentions
from modules.families.parts import attention_processor
from modules.families.parts.attention_processor import KernelProcessor, set_attention
from modules.families.parts.part_classes import UNET
from modules.families.protocol import ModelFamily, PartMemory
from modules.families.registry import FAMILIES
from modules.system import factories, hardware
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from tests.builders.configs import small_config
from tests.builders.pipelines import load_tiny
from tests.training.test_checkpointing import predicted
from trainer.preflight.requirements import problems_of_speed
from trainer.run.machine import machine_of
from trainer.run.model import load_model

ON_CPU = ["sdpa_flash", "sdpa_math"]


def set_to(family: ModelFamily, name: str) -> ModelFamily:
    set_attention(family.parts["unet"].module, UNET, name, device=CPU, dtype=torch.float32)
    return family


def result_of(family: ModelFamily) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss, and the gradients of the UNet's weights in a row."""
    unet = family.parts["unet"].module
    unet.requires_grad_(True)
    unet.zero_grad()
    loss = predicted(family)
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in unet.parameters() if p.grad is not None])


def test_those_that_run_agree(any_model: Path) -> None:
    """SD and SDXL, whose UNets have attention of different depth."""
    plain = result_of(load_tiny(any_model))
    for name in ON_CPU:
        found = result_of(set_to(load_tiny(any_model), name))
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-5)
    assert usable_attentions("cpu", is_16_bit=False) == ["sdpa", *ON_CPU]


def test_the_choice_for_a_transformer_is_that_of_no_other_model(tiny_z_image: Path) -> None:
    """In the same process, as a sampling model or a later run is."""
    chosen: Any = load_tiny(tiny_z_image)
    spec = chosen.spec.denoiser.model
    set_attention(chosen.denoiser, spec, "sdpa_math", device=CPU, dtype=torch.float32)
    assert {layer.processor._attention_backend for layer in attention_processor._attention_layers(chosen.denoiser)} == {
        "_native_math"
    }
    assert attention_dispatch._AttentionBackendRegistry.get_active_backend()[0] == "native"


@pytest.mark.parametrize("mode", ["block", "whole"])
def test_a_recomputation_uses_the_same(tiny_sd: Path, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[bool, bool]] = []
    plain_sdpa = attention_processor.scaled_dot_product_attention

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        backends = torch.backends.cuda
        used.append((backends.math_sdp_enabled(), backends.flash_sdp_enabled()))
        return plain_sdpa(*args, **kwargs)

    monkeypatch.setattr(attention_processor, "scaled_dot_product_attention", watched)
    family = set_to(load_tiny(tiny_sd), "sdpa_math")
    result_of(family)
    num_calls = len(used) - 1  # one tries it out
    family.set_memory({"unet": PartMemory(mode)}, train_device=CPU, temp_device=CPU)
    result_of(family)
    assert len(used) == 1 + 3 * num_calls
    assert set(used) == {(True, False)}


def test_one_that_does_not_run_here_is_refused_with_those_that_do(tiny_sd: Path) -> None:
    for name in ("sdpa_efficient", "cudnn", "flash", "xformers"):
        with pytest.raises(DarkroomError, match="does not run on cpu in float32") as refused:
            set_to(load_tiny(tiny_sd), name)
        assert refused.value.advice == "Choose another attention: PyTorch's choice, PyTorch: flash, PyTorch: math."


@pytest.mark.parametrize(
    ("name", "precision", "gpu", "expected"),
    [
        ("sdpa", "float32", False, ""),
        ("sdpa_flash", "float32", False, ""),
        ("sdpa_efficient", "float32", False, "does not train on this device (cpu)"),
        ("flash", "float32", False, "needs the package flash_attn"),
        ("xformers", "float32", False, "needs the package xformers"),
        ("flex", "float32", False, "does not train on this device (cpu)"),
        ("cudnn", "float32", True, "computes in bfloat16 or float16 only, and the precision is float32"),
        ("cudnn", "bfloat16", True, ""),
        ("sdpa_flash", "float16", True, ""),
    ],
)
def test_preflight_names_what_is_missing(
    tiny_sd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, precision: str, gpu: bool, expected: str
) -> None:
    monkeypatch.setattr(hardware, "here", lambda: hardware.Hardware("cu128", False, (9.0,)))
    config = small_config(
        tmp_path,
        model=tiny_sd,
        images=tmp_path,
        general={"train_device": "cuda" if gpu else "cpu"},
        training={"attention": name, "precision": precision},
    )
    found = [p for p in problems_of_speed(config) if p.path == "training.attention"]
    assert [expected in p.message and "PyTorch's choice" in p.advice for p in found] == ([True] if expected else [])


def test_a_run_uses_the_chosen_one(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=images, training={"attention": "sdpa_math"})
    unet = load_model(config, machine_of(config.general, "float32")).family.parts["unet"].module
    kernels = {p.kernel for p in unet.attn_processors.values() if isinstance(p, KernelProcessor)}
    assert kernels == {attention_processor.sdpa_math}
    assert all(isinstance(p, KernelProcessor) for p in unet.attn_processors.values())


def test_every_kernel_exists() -> None:
    assert all(callable(load_factory(spec.kernel)) for spec in ATTENTIONS.values() if spec.kernel)
    assert attention_processor.sdpa_cudnn.args == (SDPBackend.CUDNN_ATTENTION,)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "family", "is_deterministic", "expected"),
    [
        ("flex", "z_image", False, "is not supported for Z-Image"),
        ("flex", "anima", False, "is not supported for Anima"),
        ("flex", "sd3", False, ""),
        ("xformers", "qwen_image", False, "cannot leave out the padding of shorter prompts"),
        ("xformers", "z_image", False, ""),
        ("flash", "z_image", True, "is not deterministic for Z-Image"),
        ("flash", "z_image", False, ""),
        ("flash", "sd3", True, ""),
    ],
)
def test_preflight_names_what_diffusers_backends_lack(
    monkeypatch: pytest.MonkeyPatch, name: str, family: str, is_deterministic: bool, expected: str
) -> None:
    """Without compiling, with a wrong mask, or with other bits each time: on a GPU that would be found too late."""
    monkeypatch.setattr(hardware, "here", lambda: hardware.Hardware("cu130", False, (9.0,)))
    monkeypatch.setattr(factories.Package, "is_installed", property(lambda self: True))
    config = decode(
        {
            "model": {"family": family},
            "general": {"train_device": "cuda", "deterministic": is_deterministic},
            "training": {"attention": name, "precision": "bfloat16"},
        }
    ).config
    found = [p for p in problems_of_speed(config) if p.path == "training.attention"]
    assert [expected in p.message for p in found] == ([True] if expected else [])
    assert all(ATTENTIONS[name].label not in p.advice for p in found)


@pytest.mark.parametrize("family", [name for name, spec in FAMILIES.items() if not spec.denoiser.model.attention])
def test_preflight_refuses_any_choice_for_families_without_one(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """They were refused after the model was loaded, which takes minutes."""
    monkeypatch.setattr(hardware, "here", lambda: hardware.Hardware("cu130", False, (9.0,)))
    for name, spec in ATTENTIONS.items():
        config = decode(
            {
                "model": {"family": family},
                "general": {"train_device": "cuda"},
                "training": {"attention": name, "precision": "bfloat16"},
            }
        ).config
        found = [p for p in problems_of_speed(config) if p.path == "training.attention"]
        assert [p.message for p in found] == (
            [f"The attention {spec.label} is not supported for {FAMILIES[family].label}."] if spec.kernel else []
        )
        assert {p.advice for p in found} <= {"Choose another attention: PyTorch's choice."}


def test_a_transformer_gets_no_attention_that_diffusers_would_not_compile(tiny_z_image: Path) -> None:
    family: Any = load_tiny(tiny_z_image)
    with pytest.raises(DarkroomError, match="PyTorch: Flex is not supported for this model"):
        set_attention(family.denoiser, family.spec.denoiser.model, "flex", device=CPU, dtype=torch.float32)


def test_the_attentions_named_instead_are_those_of_the_model(
    tiny_z_image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ATTENTIONS, "flex", replace(ATTENTIONS["flex"], devices=("cpu",)))  # type: ignore[index]
    family: Any = load_tiny(tiny_z_image)
    with pytest.raises(DarkroomError, match="does not run on cpu") as refused:
        set_attention(family.denoiser, family.spec.denoiser.model, "cudnn", device=CPU, dtype=torch.float32)
    assert refused.value.advice == "Choose another attention: PyTorch's choice, PyTorch: flash, PyTorch: math."


def test_xformers_gets_no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """diffusers hands it a mask of true and false as numbers to add: 0 for what is to be left out."""
    given: list[torch.Tensor] = []

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, *_: Any) -> Any:
        given.append(bias)
        return query

    monkeypatch.setattr(attention_dispatch, "xops", SimpleNamespace(memory_efficient_attention=attend), raising=False)
    states, mask = torch.ones(1, 4, 2, 8), torch.tensor([True, True, True, False])[None, None, None]
    attention_dispatch._xformers_attention(states, states, states, attn_mask=mask)
    if given[0][0, 0, 0].tolist() == [1.0, 1.0, 1.0, 0.0]:
        assert not ATTENTIONS["xformers"].takes_mask


def test_flex_is_compiled_for_every_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """After eight of them, torch's default, it would hold the matrix of all tokens by all tokens."""
    limits: list[int] = []

    def kernel(query: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        limits.append(torch._dynamo.config.recompile_limit)
        return query

    attention_processor._compiled_flex.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda _, **options: kernel)
    monkeypatch.setattr(torch._dynamo.config._config["recompile_limit"], "default", 8)
    thread = threading.Thread(target=attention_processor.flex, args=[torch.ones(1)] * 3)  # autograd has one of its own
    thread.start()
    thread.join()
    attention_processor._compiled_flex.cache_clear()
    assert limits[0] > 1000
