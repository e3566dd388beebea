"""Runs on a machine without a GPU: too large, slow, and small ones; and the presets that a machine can train."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modules.config.presets import DEMO, Preset, list_presets
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.registry import FAMILIES
from modules.system import hardware
from modules.system.hardware import GpuMemory, Hardware
from modules.system.problem import Problem
from tests.builders.budgets import budget_of_run
from trainer.preflight import estimates, presets_here
from trainer.preflight.estimates import problems_of_processor
from trainer.preflight.machine import Machine, this_machine
from trainer.preflight.presets_here import estimate_run, fit_to_free_memory, fits, offers

GB = 10**9
DESKTOP = Machine(None, 32 * GB, 500 * GB, 8, "No GPU was found.")
PRESETS = {p.name: p for p in list_presets()}


def preset(name: str) -> Config:
    return PRESETS[name].load().config


def found(config: Config, machine: Machine = DESKTOP, *, steps: int = 1000) -> list[Problem]:
    side = config.data.resolution_px[0]
    assert isinstance(side, int)
    budget = budget_of_run(config, {Size(side, side): 20})
    return list(problems_of_processor(budget, total_steps=steps, machine_of=lambda _config: machine))


def on(config: Config, device: str) -> Config:
    return config.model_copy(update={"general": config.general.model_copy(update={"train_device": device})})


@pytest.mark.parametrize("name", ["#sdxl 1.0 LoRA 24 GB", "#z-image LoRA 8 GB"])
def test_a_run_sized_for_a_gpu_is_an_error_that_names_what_runs_here(name: str) -> None:
    [problem] = found(preset(name))
    assert (problem.severity, problem.path, problem.remedy) == ("error", "general.train_device", "preset")
    assert "No GPU was found. The run is sized for a GPU. On 8 cores" in problem.message
    assert "such as the preset #sd 1.5 LoRA" in problem.advice
    assert ", or train on a machine with a GPU" in problem.advice
    assert "sana" not in problem.advice, "half a minute for an image is too slow"


def test_the_presets_for_a_processor_are_looked_for_with_progress_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check showed "scanning 0 of 20" for a minute, and could not be stopped."""
    monkeypatch.setattr(presets_here, "_known_names", {})
    monkeypatch.setattr(presets_here, "estimate_run", lambda _config, _machine: None)
    reported: list[str] = []
    for _ in range(2):
        assert presets_here.names_on_processor(DESKTOP, lambda what, *_: reported.append(what)) == ()
    assert set(reported) == {"estimating memory"}
    assert len(reported) <= len(FAMILIES)


def test_one_that_needs_more_memory_than_the_computer_has_is_an_error_on_any_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimates, "names_on_processor", lambda *_: ())
    for device in ("auto", "cpu"):
        [problem] = found(on(preset("#sd 1.5 LoRA"), device), replace(DESKTOP, memory_bytes=2 * GB))
        assert problem.severity == "error"
        assert "and the computer has 2.0 GB" in problem.message
        assert problem.advice.startswith("Choose a smaller model, or train on a machine with a GPU")


def test_a_slow_one_is_a_warning_with_the_time_and_so_is_one_on_the_device_cpu() -> None:
    [slow] = found(preset("#sd 1.5 LoRA"))
    assert slow.severity == "warning"
    assert "a step takes about 8 seconds, and the 1,000 steps of the run about 2 hours" in slow.message
    [chosen] = found(on(preset("#sdxl 1.0 LoRA"), "cpu"))
    assert chosen.severity == "warning"


def test_small_and_short_runs_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(preset(DEMO), replace(DESKTOP, num_cores=1)) == []
    assert found(preset("#sd 1.5 LoRA"), steps=10) == []
    with_gpu = Hardware("cu128", is_mac=False, capabilities=(8.9,))
    monkeypatch.setattr(hardware, "here", lambda: with_gpu)
    assert found(preset("#sdxl 1.0 LoRA")) == []


def test_a_gpu_that_torch_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_machine().gpu is None
    monkeypatch.setattr(hardware, "gpu_memory", lambda _device: GpuMemory(12 << 30, 12 << 30))
    machine = this_machine()
    assert machine.gpu is None
    assert machine.why_no_gpu == "The GPU of this machine is not used: the installed torch is the CPU-only build."


def test_the_gpu_of_a_machine_is_the_one_that_a_config_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset of the user's for the second card was compared with the memory of the first."""
    free = {"auto": GpuMemory(24 << 30, 2 << 30), "cuda:1": GpuMemory(24 << 30, 23 << 30)}
    monkeypatch.setattr(hardware, "here", lambda: Hardware("cu128", is_mac=False, capabilities=(8.9, 8.9)))
    monkeypatch.setattr(hardware, "gpu_memory", free.get)
    assert this_machine().gpu == free["auto"]
    assert this_machine(on(Config(), "cuda:1")).gpu == free["cuda:1"]
    assert this_machine(on(Config(), "cpu")).gpu is None


def names(machine: Machine, configs: dict[Preset, Config]) -> list[str]:
    return [offer.preset.name for offer in offers(machine, configs)]


def test_the_presets_that_a_machine_can_train_are_offered_and_no_others() -> None:
    wanted = ("#sd 1.5 LoRA", "#sd 1.5 fine-tune", "#sdxl 1.0 LoRA 8 GB", "#krea 2 LoRA 24 GB", "#krea 2 LoRA 8 GB")
    configs = {PRESETS[name]: preset(name) for name in wanted}
    card = Machine(GpuMemory(8 << 30, 8 << 30), 32 * GB, 500 * GB, 8)
    assert names(DESKTOP, configs) == ["#sd 1.5 LoRA"]
    assert names(replace(DESKTOP, memory_bytes=2 * GB), configs) == []
    # Krea 2 keeps most of its layers in the computer's memory there, which is slow.
    assert names(card, configs) == ["#sdxl 1.0 LoRA 8 GB", "#sd 1.5 LoRA", "#krea 2 LoRA 8 GB"]
    assert names(replace(card, disk_bytes=16 * GB), configs) == ["#sdxl 1.0 LoRA 8 GB", "#sd 1.5 LoRA"]
    assert names(replace(card, gpu=GpuMemory(4 << 30, 4 << 30)), configs) == ["#sd 1.5 LoRA"]  # by its estimate
    sdxl, _, krea = offers(card, configs)
    assert (round(sdxl.needs.download_bytes / GB, 1), round(krea.needs.download_bytes / GB, 1)) == (13.9, 33.9)
    assert krea.needs.seconds(20) > sdxl.needs.seconds(20) > sdxl.needs.seconds(10) > 0


def test_an_offered_preset_is_fitted_to_what_is_free_on_the_card() -> None:
    """It is made for the whole card, of which a desktop has a part: the start was refused."""
    config = preset("#sdxl 1.0 LoRA 8 GB")
    card = Machine(GpuMemory(8 << 30, 8 << 30), 32 * GB, 500 * GB, 8)
    needs = estimate_run(config, card)
    assert needs is not None
    assert fits(needs, card)
    assert fit_to_free_memory(config, card) is None
    assert fit_to_free_memory(config, DESKTOP) is None
    busy = replace(card, gpu=GpuMemory(8 << 30, round(0.9 * needs.memory_bytes)))
    fitted = fit_to_free_memory(config, busy)
    assert fitted is not None
    assert busy.gpu is not None
    assert fitted.after_bytes <= 0.95 * busy.gpu.free_bytes < fitted.before_bytes
    after = estimate_run(fitted.config, busy)
    assert after is not None
    assert after.memory_bytes == fitted.after_bytes
    assert fitted.fits
    nearest = fit_to_free_memory(config, replace(card, gpu=GpuMemory(8 << 30, 1 << 30)))
    assert nearest is not None
    assert not nearest.fits
