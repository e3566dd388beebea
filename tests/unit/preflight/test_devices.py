"""Invalid and missing devices, and dtypes that old GPUs do not support."""

from __future__ import annotations

from typing import Any

import pytest

from modules.config.schema import Config
from modules.quantization.registry import FORMATS
from modules.system import hardware
from modules.system.hardware import Hardware
from tests.unit.preflight.setups import changed, errors, reported
from trainer.preflight import check, devices


def machine(
    monkeypatch: pytest.MonkeyPatch, *gpus: float, build: str = "cu128", is_mac: bool = False, asked: bool = True
) -> None:
    here = Hardware(build, is_mac=is_mac, capabilities=gpus if asked else None)
    monkeypatch.setattr(hardware, "here", lambda: here)


@pytest.mark.parametrize("name", ["auto", "", " AUTO ", "cpu", "cpu:1", "CPU"])
def test_names_that_are_always_available(config: Config, name: str) -> None:
    assert reported(check(changed(config, general__train_device=name, general__temp_device=name))) == []


@pytest.mark.parametrize(
    "name", ["gpu", "cuda1", "cuda:", "cuda:x", "auto:1", "xpu:x", "cuda:0:1", "cpu cuda", "cuda:-1"]
)
def test_names_that_are_not_devices(config: Config, name: str) -> None:
    report = check(changed(config, general__train_device=name, general__temp_device=name))
    assert errors(report) == ["general.train_device", "general.temp_device"]
    assert all("is not a valid device" in p.message and p.advice for p in report.errors)


def test_a_gpu_needs_a_build_that_uses_it(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = changed(config, general__train_device="cuda")
    [problem] = check(asked).errors
    assert "the CPU-only build" in problem.message
    machine(monkeypatch, build="", is_mac=True, asked=False)
    [problem] = check(asked).errors
    assert "a Mac has no NVIDIA GPU" in problem.message
    machine(monkeypatch, build="rocm6.4", asked=False)
    assert check(asked).errors == []
    machine(monkeypatch, build="cu128", asked=False)  # not known before the run
    assert check(asked).errors == []


def test_gpus_of_other_makers(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence for each: AMD's are "cuda" in torch, Apple's need a Mac, Intel's are not supported."""
    machine(monkeypatch, build="rocm7.2", asked=False)
    assert check(changed(config, general__train_device="cuda")).errors == []
    [problem] = check(changed(config, general__train_device="mps")).errors
    assert problem.message == "mps is only available on a Mac."
    machine(monkeypatch, build="", is_mac=True, asked=False)
    assert check(changed(config, general__train_device="mps")).errors == []
    machine(monkeypatch, build="xpu", asked=False)
    [problem] = check(changed(config, general__train_device="xpu:0")).errors
    assert problem.message == "xpu:0: Intel GPUs are not supported."


def test_gpus_are_counted(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 8.9)
    assert check(changed(config, general__train_device="cuda:0")).errors == []
    [problem] = check(changed(config, general__train_device="cuda:1")).errors
    assert problem.message == "cuda:1 does not exist: this machine has 1 NVIDIA GPU, starting at cuda:0."
    machine(monkeypatch)
    [problem] = check(changed(config, general__temp_device="cuda")).errors
    assert problem.message == "cuda does not exist: this machine has 0 NVIDIA GPUs."


def test_the_gpu_of_a_mac_is_on_a_mac(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors(check(changed(config, general__train_device="mps"))) == ["general.train_device"]
    machine(monkeypatch, build="", is_mac=True, asked=False)
    assert check(changed(config, general__train_device="mps")).errors == []


@pytest.mark.parametrize(
    ("capability", "changes", "expected"),
    [
        (7.5, {"training__precision": "bfloat16"}, [("training.precision", "warning")]),
        (7.5, {"training__precision": "tfloat32"}, [("training.precision", "info")]),
        (7.5, {"training__precision": "float16"}, []),
        (7.5, {"parts__vae__dtype": "bfloat16"}, [("parts.vae.dtype", "warning")]),
        (8.0, {"training__precision": "bfloat16"}, []),
        (8.0, {"training__precision": "tfloat32"}, []),
        (8.0, {"parts__vae__dtype": "bfloat16"}, []),
    ],
)
def test_what_an_old_gpu_does_not_support(
    config: Config, monkeypatch: pytest.MonkeyPatch, capability: float, changes: dict[str, Any], expected: list[Any]
) -> None:
    machine(monkeypatch, capability, 9.0)
    for name in ("cuda", "auto", "cuda:0"):
        assert reported(check(changed(config, general__train_device=name, **changes))) == expected
    assert reported(check(changed(config, general__train_device="cuda:1", **changes))) == []


@pytest.mark.parametrize(
    ("dtype", "capability", "severity", "said"),
    [
        (
            "int8",
            7.5,
            "info",
            "UNet in int8 has 1.00 bytes for each weight, bfloat16 2. For each layer a step has 4",
        ),
        ("nfloat4", 8.9, "info", "has 0.56 bytes for each weight, bfloat16 2"),
        ("float8_w8a8", 8.9, "info", "products of large ones are faster"),
        ("float8_w8a8", 8.6, "warning", "has no products in float8 (8.9 is needed)"),
        ("int8_w8a8", 7.0, "warning", "has no products in int8 (7.5 is needed)"),
    ],
)
def test_what_a_quantized_denoiser_costs_is_stated(
    config: Config, monkeypatch: pytest.MonkeyPatch, dtype: str, capability: float, severity: str, said: str
) -> None:
    machine(monkeypatch, capability)
    found = check(changed(config, general__train_device="cuda:0", parts__unet__dtype=dtype))
    [problem] = [p for p in found.problems if p.path == "parts.unet.dtype"]
    assert problem.severity == severity
    assert said in problem.message


def test_what_the_blocks_of_a_gguf_file_cost_is_stated(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 8.9)
    there = changed(config, general__train_device="cuda:0")
    [problem] = devices._speed_of(FORMATS["gguf"], "parts.unet.dtype", there)
    assert "8 kernels a layer and step (Q8_0) to 46 (Q4_K), so steps are slower than in bfloat16" in problem.message
    assert problem.severity == "info"


@pytest.mark.parametrize(
    ("driver", "visible", "order", "expected"),
    [
        ("8.9 8.9", None, None, (8.9, 8.9)),
        ("8.9 8.9 8.9", "1,2", None, (8.9, 8.9)),
        ("8.9", "", None, ()),
        ("8.9", "-1", None, ()),
        ("8.9 8.9", "1,-1,0", None, (8.9,)),
        ("8.9 7.5", None, "PCI_BUS_ID", (8.9, 7.5)),
        ("8.9 7.5", None, None, (0.0, 0.0)),
        ("8.9 7.5", "1", "PCI_BUS_ID", (0.0,)),
    ],
)
def test_gpus_in_the_order_of_cuda(
    monkeypatch: pytest.MonkeyPatch, driver: str, visible: str | None, order: str | None, expected: tuple[float, ...]
) -> None:
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), ("CUDA_DEVICE_ORDER", order)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert hardware._in_order_of_cuda(tuple(map(float, driver.split()))) == expected
