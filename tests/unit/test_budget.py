"""Memory and disk before a run: warnings with advice, for simulated GPUs and disks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.run import PhaseMemory, optimizer_bytes
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.factored import Adafactor
from modules.optim.optimizers.sums import Sgd
from modules.optim.spec import OptimizerSettings
from modules.system import hardware
from modules.system.hardware import GpuMemory, Hardware, gpu_memory
from modules.system.paths import PROGRAM_ROOT
from modules.system.problem import Problem, format_size
from tests.builders.budgets import budget_of_run
from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from trainer.data.datasets import datasets_of
from trainer.preflight.budget import (
    cache_memory_problems,
    describe_download,
    describe_memory,
    disk_problems,
    memory_problems,
)
from trainer.preflight.estimates import cached_sizes_of, figures_of
from trainer.preflight.fit import free_here
from trainer.preflight.room import chosen_blocks, on_card, with_blocks
from trainer.preflight.run_budget import known_budget, memory_estimate

GB = 1_000_000_000
SIZES = {Size(1024, 1024): 20, Size(1216, 832): 3}
BF16 = {name: {"dtype": "bfloat16"} for name in ("unet", "vae", "text_encoder", "text_encoder_2")}
PROMPT = {"prompt": "a cat", "width_px": 1024, "height_px": 1024}


def config(tmp_path: Path | None = None, **sections: Any) -> Config:
    """An SDXL LoRA in bfloat16, with sections laid over it; written under `tmp_path` where one is given."""
    places: dict[str, Any] = {}
    if tmp_path is not None:
        places = {
            "general": {"workspace_dir": str(tmp_path / "runs"), "cache_dir": str(tmp_path / "cache")},
            "output": {"destination": str(tmp_path / "out.safetensors")},
        }
    tree = {
        "model": {"family": "sdxl", "base_model": "stabilityai/stable-diffusion-xl-base-1.0"},
        "parts": BF16,
        "training": {"precision": "bfloat16", "batch_size": 4},
        **places,
    }
    return Config.model_validate({**tree, **sections})


def with_part(name: str, **changes: Any) -> dict[str, Any]:
    return {**BF16, name: {**BF16[name], **changes}}


def total(wanted: Config, sizes: dict[Size, int] = SIZES) -> int:
    found = memory_estimate(wanted, sizes)
    assert found is not None
    return found.peak.total_bytes


def card(*, free: int, of: int | None = None) -> Any:
    return lambda device: GpuMemory(of or free, free)


# -- the estimate of a config


def test_the_estimate_names_the_peak_phase_and_its_parts() -> None:
    found = memory_estimate(config(), SIZES)
    assert found is not None
    assert found.peak.phase == "training"
    assert found.is_published
    assert [p.phase for p in found.phases] == ["encoding images", "training"]
    budget = budget_of_run(config(), SIZES)
    line = describe_memory(budget, budget)
    assert line.startswith("About ")
    assert "while training" in line
    assert "activations" in line
    assert "published model" in line


def test_the_line_says_what_automatic_checkpointing_does_with_the_free_memory() -> None:
    """As the run does at its start; without a known memory it is the least that the run needs."""
    budget = budget_of_run(config(parts=with_part("unet", checkpointing="auto", train=True)), SIZES)
    least = describe_memory(budget, budget)
    assert least.startswith(f"About {format_size(budget.peak_bytes)} while training")
    assert "uses more where more is free" in least
    line = describe_memory(budget, on_card(budget, 12 * GB))
    blocks = chosen_blocks(budget, limit_bytes=round(0.9 * 12 * GB))
    assert f"recomputes {len(blocks['unet'])} blocks to fit the memory that is free now" in line
    assert f"needs at least {format_size(budget.peak_bytes)}." in line
    assert f"About {format_size(with_blocks(budget, blocks).peak_bytes)} while training" in line
    plain = budget_of_run(config(), SIZES)
    assert on_card(plain, 12 * GB) is plain


def test_the_figures_at_a_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time for the steps that are left, memory against the card, or the computer where no GPU is used."""
    budget = budget_of_run(config(), SIZES)
    card = figures_of(budget, num_steps=100, memory_of=lambda _device: GpuMemory(8 * GB, 7 * GB))
    assert (card.memory_bytes, card.device_bytes, card.on_gpu) == (budget.peak_bytes, 8 * GB, True)
    pairs = config(training={"precision": "bfloat16", "batch_size": 4, "method": {"name": "dpo"}})
    twice = figures_of(budget_of_run(pairs, SIZES), num_steps=100, memory_of=lambda _device: None)
    assert twice.seconds > 2 * card.seconds
    monkeypatch.setattr(hardware, "here", lambda: Hardware("cpu", False, None))
    monkeypatch.setattr(hardware, "total_memory", lambda: 32 * GB)
    here = figures_of(budget, num_steps=100, memory_of=lambda _device: None)
    assert (here.device_bytes, here.on_gpu) == (32 * GB, False)


def several(num_gpus: int, **multi_gpu: Any) -> dict[str, Any]:
    return {"enabled": True, "device_indexes": ", ".join(map(str, range(num_gpus))), **multi_gpu}


@pytest.mark.parametrize(
    ("train_device", "multi_gpu", "asked"),
    [
        ("auto", {}, "auto"),
        ("cuda:1", {}, "cuda:1"),
        ("cuda:1", {"device_indexes": "3"}, "cuda:1"),  # not switched on
        ("auto", {"enabled": True}, "auto"),
        ("auto", {"enabled": True, "device_indexes": "3"}, "cuda:3"),
        ("cuda:1", {"enabled": True, "device_indexes": " 2, 3"}, "cuda:2"),
        ("cpu", {"enabled": True, "device_indexes": "3"}, "cpu"),
    ],
)
def test_the_memory_of_the_gpu_that_a_run_uses_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, train_device: str, multi_gpu: dict[str, Any], asked: str
) -> None:
    monkeypatch.setattr(hardware, "here", lambda: Hardware("cu130", False, (8.6,) * 4))
    names: list[str] = []

    def memory_of(device: str) -> GpuMemory:
        names.append(device)
        return GpuMemory(80 * GB, 80 * GB)

    run = config(general={"train_device": train_device}, multi_gpu=multi_gpu)
    budget = budget_of_run(run, SIZES)
    assert not list(memory_problems(budget, memory_of=memory_of))
    free_here(run, memory_of=memory_of)
    figures_of(budget, num_steps=1, memory_of=memory_of)
    assert names == [asked] * 3


def test_gpus_that_share_a_batch_hold_their_share() -> None:
    def of(batch_size: int, accumulation_steps: int, num_gpus: int = 1) -> int:
        training = {"precision": "bfloat16", "batch_size": batch_size, "accumulation_steps": accumulation_steps}
        sums_bytes = 100_000_000 if num_gpus > 1 else 0  # the buffer in which processes sum their gradients
        return total(config(training=training, multi_gpu=several(num_gpus))) - sums_bytes

    assert of(4, 1, num_gpus=2) == of(2, 1)
    assert of(4, 1, num_gpus=3) == of(2, 1)
    assert of(4, 2, num_gpus=2) == of(4, 1)  # each takes a whole batch, and accumulates nothing
    assert of(4, 3, num_gpus=2) == of(4, 2)


def test_gpus_that_shard_a_fine_tune_hold_their_rows_and_what_they_gather() -> None:
    def of(num_gpus: int, **multi_gpu: Any) -> PhaseMemory:
        fine_tune = {"trains": "full", "precision": "bfloat16", "batch_size": 4, "ema": {"mode": "train_device"}}
        found = memory_estimate(
            config(
                training=fine_tune,
                parts={**with_part("text_encoder", train=False), "text_encoder_2": {"train": False}},
                multi_gpu=several(num_gpus, **multi_gpu),
                sampling={"prompts": [PROMPT]},
            ),
            SIZES,
        )
        assert found is not None
        training, sampling = found.phase("training"), found.phase("sampling")
        assert training is not None
        assert sampling is not None
        if num_gpus > 1:  # each holds all weights then, to sample its share
            assert dict(sampling.parts)["weights"] > dict(training.parts)["weights"] / 2
        return training

    one, four, plain = of(1), of(4), of(4, sharding="off")
    assert dict(plain.parts)["optimizer"] == dict(one.parts)["optimizer"]
    for use in ("optimizer", "master weights", "EMA"):
        assert dict(four.parts)[use] == pytest.approx(dict(one.parts)[use] / 4, rel=0.01)
    assert dict(one.parts)["weights"] / 4 < dict(four.parts)["weights"] < dict(one.parts)["weights"] / 2
    assert four.total_bytes < plain.total_bytes / 2


def test_sampling_is_the_peak_where_the_samples_are_large_and_the_training_small() -> None:
    huge = {**PROMPT, "width_px": 4096, "height_px": 4096}
    found = memory_estimate(config(sampling={"prompts": [huge]}), {Size(64, 64): 1})
    assert found is not None
    assert found.peak.phase in ("sampling", "decoding samples")


def test_no_sample_phase_without_samples_and_no_encoding_phase_without_caches() -> None:
    found = memory_estimate(config(data={"latent_cache": False, "text_cache": False}), SIZES)
    assert found is not None
    assert [p.phase for p in found.phases] == ["training"]


@pytest.mark.parametrize(
    "smaller",
    [
        {"parts": with_part("unet", checkpointing="block")},
        {"training": {"precision": "bfloat16", "batch_size": 1}},
        {"parts": with_part("text_encoder_2", train=False)},
        {"adapter": {"name": "lora", "rank": 1}},
        {"adapter": {"name": "lora", "layers": "custom", "custom_layers": "attn2.to_k"}},
    ],
    ids=["checkpointing", "batch", "one part less", "rank", "fewer layers"],
)
def test_savings_reduce_the_estimate(smaller: dict[str, Any]) -> None:
    assert total(config(**smaller)) < total(config())


@pytest.mark.parametrize(
    "larger",
    [
        {"parts": {}},
        {"training": {"precision": "bfloat16", "batch_size": 4, "ema": {"mode": "train_device"}}},
        {"training": {"precision": "bfloat16", "batch_size": 4, "trains": "full"}},
        {"general": {"train_device": "cuda", "temp_device": "cuda"}},
        {"adapter": {"name": "lora", "dropout": 0.1}},
    ],
    ids=["float32 weights", "average", "fine-tune", "no offloading", "dropout"],
)
def test_costs_increase_the_estimate(larger: dict[str, Any]) -> None:
    assert total(config(**larger)) > total(config())


def test_offloading_on_top_of_checkpointing_takes_less() -> None:
    blocks = config(parts=with_part("unet", checkpointing="block"))
    offloaded = config(parts=with_part("unet", checkpointing="block", offload_activations=True))
    assert total(offloaded) < total(blocks)


@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_offloaded_layers_save_their_fraction_of_the_weights(trains: str) -> None:
    training = {"trains": trains, "precision": "bfloat16", "batch_size": 1}
    changes = [{"checkpointing": "block", "offload_fraction": fraction} for fraction in (0.0, 0.5, 1.0)]
    none, half, everything = [
        memory_estimate(config(training=training, parts=with_part("unet", **change)), SIZES) for change in changes
    ]
    assert none is not None
    assert half is not None
    assert everything is not None
    # 2.57 thousand million weights of 2 bytes, nineteen of twenty in blocks; two blocks are there at a time.
    spared = dict(none.peak.parts)["weights"] - dict(half.peak.parts)["weights"]
    assert 0.4 * 5.1e9 < spared < 0.5 * 5.1e9
    assert 0.85 * 5.1e9 < dict(none.peak.parts)["weights"] - dict(everything.peak.parts)["weights"] < 0.95 * 5.1e9
    if trains == "full":  # two moments in float32 are where the weights are
        assert dict(none.peak.parts)["optimizer"] - dict(half.peak.parts)["optimizer"] > 3.5 * spared
    there = config(
        training=training,
        parts=with_part("unet", **changes[1]),
        general={"train_device": "cuda", "temp_device": "cuda"},
    )
    same = memory_estimate(there, SIZES)
    assert same is not None
    assert dict(same.peak.parts)["weights"] > dict(none.peak.parts)["weights"]


def test_the_largest_size_counts_whatever_the_others_are() -> None:
    assert total(config(), {Size(512, 512): 900, Size(1024, 1024): 1}) == total(config(), {Size(1024, 1024): 1})


@pytest.mark.parametrize(
    ("settings", "bytes_per_number"),
    [(AdamW(), 8), (AdamW(amsgrad=True), 12), (Sgd(), 0), (Sgd(momentum=0.9), 4)],
)
def test_optimizer_states(settings: OptimizerSettings, bytes_per_number: float) -> None:
    assert optimizer_bytes(settings, [(10, 20), (20,)]) == 220 * bytes_per_number


def test_adafactor_keeps_a_row_and_a_column() -> None:
    assert optimizer_bytes(Adafactor(), [(10, 20), (7,)]) == 4 * (10 + 20 + 7)


def test_an_unsupported_config_has_no_estimate() -> None:
    assert memory_estimate(config(parts=with_part("unet", dtype="gguf")), SIZES) is None


def test_a_model_without_configs_has_no_estimate(tmp_path: Path) -> None:
    for part in BF16:
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text("{}")
    broken = config(model={"family": "sdxl", "base_model": str(tmp_path)})
    assert known_budget(broken, SIZES) is None
    assert memory_estimate(broken, SIZES) is None


def test_without_images_there_is_no_estimate() -> None:
    assert memory_estimate(config(), {}) is None


# -- the card


def test_a_run_that_fits_is_not_reported() -> None:
    assert list(memory_problems(budget_of_run(config(), SIZES), memory_of=card(free=90 * GB))) == []


def test_nothing_is_reported_for_an_unknown_gpu() -> None:
    assert list(memory_problems(budget_of_run(config(), SIZES), memory_of=lambda device: None)) == []


def test_a_run_that_is_too_large_is_a_warning_with_advice() -> None:
    (found,) = memory_problems(budget_of_run(config(), SIZES), memory_of=card(free=12 * GB))
    assert found.severity == "warning"
    assert found.path == "parts.unet.checkpointing"
    assert "while training" in found.message
    assert "12.0 GB" in found.message
    assert "for the UNet and the text encoders saves about" in found.advice
    assert "with twice the accumulation steps saves about" in found.advice
    assert "With all of them the run needs about" in found.advice
    assert "which fits" in found.advice


def test_memory_of_other_programs_is_reported() -> None:
    (found,) = memory_problems(budget_of_run(config(), SIZES), memory_of=card(free=12 * GB, of=24 * GB))
    assert "other programs use 12.0 GB" in found.message


def test_the_reported_savings_are_those_of_the_changed_config() -> None:
    (found,) = memory_problems(budget_of_run(config(), SIZES), memory_of=card(free=12 * GB))
    blocks = {name: {**part, "checkpointing": "transformer"} for name, part in BF16.items() if name != "vae"}
    saved = total(config()) - total(config(parts={**BF16, **blocks}))
    assert f"the text encoders saves about {saved / 1e9:.1f} GB" in found.advice


def test_a_gpu_that_is_much_too_small_gets_no_promises() -> None:
    (found,) = memory_problems(budget_of_run(config(), SIZES), memory_of=card(free=2 * GB))
    assert "still too much" in found.advice


@pytest.mark.full
@pytest.mark.parametrize(("free_gb", "format_name"), [(5, "int8"), (2, "nfloat4")])
def test_a_frozen_base_is_advised_to_be_quantized_as_far_as_needed(free_gb: int, format_name: str) -> None:
    parts = {name: {**part, "train": name == "unet"} for name, part in with_part("unet", checkpointing="block").items()}
    small = {"precision": "bfloat16", "batch_size": 1}
    wanted = config(training=small, parts=parts)
    (found,) = memory_problems(budget_of_run(wanted, SIZES), memory_of=card(free=free_gb * GB))
    parts["unet"]["dtype"] = format_name
    saved = total(wanted) - total(config(training=small, parts=parts))
    words = f"{format_name} as the weight dtype of the UNet saves about {saved / 1e9:.1f} GB"
    assert words.lower() in found.advice.lower()
    assert saved > 2 * GB
    (found,) = memory_problems(budget_of_run(config(training=small, parts=parts), SIZES), memory_of=card(free=GB))
    assert "parts.unet.dtype" not in found.advice
    (found,) = memory_problems(
        budget_of_run(config(training={**small, "trains": "full"}), SIZES), memory_of=card(free=GB)
    )
    assert "parts.unet.dtype" not in found.advice


def test_a_fine_tune_is_advised_on_its_optimizer() -> None:
    full = config(training={"trains": "full", "precision": "bfloat16", "batch_size": 1})
    (found,) = memory_problems(budget_of_run(full, SIZES), memory_of=card(free=24 * GB))
    assert "Adafactor" in found.advice


@pytest.mark.full
def test_a_fine_tune_is_advised_on_a_fused_backward_pass_and_stochastic_rounding() -> None:
    plain: dict[str, Any] = {"trains": "full", "precision": "bfloat16", "batch_size": 1}
    parts = {n: {**p, "train": n == "unet", "checkpointing": "block"} for n, p in BF16.items()}
    full = config(training=plain, parts=parts)
    (found,) = memory_problems(budget_of_run(full, SIZES), memory_of=card(free=12 * GB))
    for words, changes in {
        "fused backward pass": {"optimizer": {"name": "adamw", "fused_back_pass": True}},
        "stochastic rounding instead of float32 master weights": {"low_precision_updates": "stochastic"},
    }.items():
        saved = total(full) - total(config(training={**plain, **changes}, parts=parts))
        assert f"{words} saves about {saved / 1e9:.1f} GB" in found.advice
    for cannot in ({"accumulation_steps": 2}, {"precision": "float16"}, {"batch_size": 4}):
        (found,) = memory_problems(
            budget_of_run(config(training={**plain, **cannot}, parts=parts), SIZES), memory_of=card(free=GB)
        )
        assert "fused backward pass" not in found.advice


# -- the disk


def disk(wanted: Config, *, free: int, weight_gb: int = 0, **changes: Any) -> list[Problem]:
    def download_bytes(_budget: object, *, most_weight_bytes: int = 4) -> int:
        return weight_gb * most_weight_bytes * GB

    facts = {"num_captions": 23, "total_steps": 100, **changes}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.preflight.budget.model_download_bytes", download_bytes)
        return list(disk_problems(budget_of_run(wanted, SIZES), SIZES, free=lambda path: free, **facts))


def test_a_disk_with_space_is_not_reported(tmp_path: Path) -> None:
    assert disk(config(tmp_path), free=100 * GB) == []


def test_a_model_that_the_disk_has_no_room_to_download_forbids_the_run(tmp_path: Path) -> None:
    """Not one that may be half as large: fine-tunes of models in float32 are published in 16 bits."""
    (found,) = disk(config(tmp_path), free=30 * GB, weight_gb=17)
    assert (found.path, found.severity, found.remedy) == ("model.hub_cache_dir", "error", "space")
    assert "34.0 GB" in found.message
    assert "30.0 GB are free" in found.message
    (scarce,) = disk(config(tmp_path), free=34 * GB + 1, weight_gb=17)
    assert (scarce.path, scarce.severity) == ("model.hub_cache_dir", "warning")
    assert "68.0 GB base model" in scarce.message


def test_the_preview_names_a_download_with_its_size(tmp_path: Path) -> None:
    assert describe_download(budget_of_run(config(), SIZES)) == (
        "stabilityai/stable-diffusion-xl-base-1.0 is downloaded first, about 13.9 GB."
    )
    own = config(parts=with_part("unet", file=str(tmp_path / "unet.safetensors")))
    alone = config(training={"trains": "vae", "precision": "bfloat16"})
    for less, size in ((own, "3.6 GB"), (alone, "335 MB")):
        assert describe_download(budget_of_run(less, SIZES)).endswith(f"about {size}."), "only what is read"
    published = budget_of_run(config(), SIZES)
    here = tmp_path / "model"
    here.mkdir()
    local = config(model={"family": "sdxl", "base_model": str(here)})
    assert describe_download(replace(published, config=local)) == ""


def test_the_rest_of_a_download_that_was_stopped_is_named(tmp_path: Path) -> None:
    """It was described as a model on this computer that lacks its weights."""
    name = "stabilityai/stable-diffusion-xl-base-1.0"
    cached = tmp_path / f"models--{name.replace('/', '--')}"
    begun = cached / "snapshots/0123"
    for part in ("unet", "text_encoder", "text_encoder_2", "vae"):
        (begun / part).mkdir(parents=True)
        (begun / part / "model.safetensors").touch()
    (begun / "unet/config.json").write_text('{"cross_attention_dim": 2048}')
    (begun / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("0123")
    place = config(model={"family": "sdxl", "base_model": name, "hub_cache_dir": str(tmp_path)})
    rest = replace(budget_of_run(config(), SIZES), config=place)
    assert describe_download(rest) == ""
    (begun / "vae/model.safetensors").unlink()
    assert describe_download(rest) == f"The rest of {name} is downloaded first, about 335 MB."


def test_a_result_that_cannot_be_written_forbids_the_run(tmp_path: Path) -> None:
    full = config(tmp_path, training={"trains": "full", "precision": "bfloat16"}, backup={"every": {}, "at_end": False})
    (found,) = disk(full, free=6 * GB)
    assert (found.path, found.severity) == ("output.destination", "error")
    assert "6.9 GB" in found.message
    assert "6.0 GB are free" in found.message


def test_a_first_backup_that_cannot_be_written_forbids_the_run(tmp_path: Path) -> None:
    full = config(tmp_path, training={"trains": "full", "precision": "bfloat16"})
    (found,) = disk(full, free=20 * GB)
    assert (found.path, found.severity) == ("general.workspace_dir", "error")
    assert "A backup needs about" in found.message


def test_many_backups_on_a_small_disk_are_a_warning(tmp_path: Path) -> None:
    often = config(tmp_path, backup={"every": {"n": 1, "unit": "step"}, "keep": 0})
    (found,) = disk(often, free=10 * GB)
    assert (found.path, found.severity) == ("general.workspace_dir", "warning")
    assert "backups" in found.message
    assert "rolling backups" in found.advice
    few = config(tmp_path, backup={"every": {"n": 1, "unit": "step"}, "keep": 1})
    assert disk(few, free=10 * GB) == []


def test_many_captions_on_a_small_disk_are_a_warning(tmp_path: Path) -> None:
    parts = {name: {**part, "train": name == "unet"} for name, part in BF16.items()}
    (found,) = disk(config(tmp_path, parts=parts), free=20 * GB, num_captions=100_000)
    assert (found.path, found.severity) == ("general.cache_dir", "warning")
    assert "caches" in found.message
    in_16_bits = config(tmp_path, parts=parts, data={"cache_dtype": "float16"})
    assert disk(in_16_bits, free=20 * GB, num_captions=50_000) == []
    in_memory = config(tmp_path, parts=parts, data={"cache_location": "memory"})
    assert disk(in_memory, free=20 * GB, num_captions=100_000) == []


def test_caches_in_memory_that_do_not_fit_are_a_warning(tmp_path: Path) -> None:
    parts = {name: {**part, "train": name == "unet"} for name, part in BF16.items()}
    in_memory = config(tmp_path, parts=parts, data={"cache_location": "memory"})
    facts = {"num_captions": 100_000}
    (found,) = cache_memory_problems(budget_of_run(in_memory, SIZES), SIZES, free=lambda: 20 * GB, **facts)
    assert (found.path, found.severity) == ("data.cache_location", "warning")
    assert list(cache_memory_problems(budget_of_run(in_memory, SIZES), SIZES, free=lambda: 200 * GB, **facts)) == []
    on_disk = budget_of_run(config(tmp_path, parts=parts), SIZES)
    assert list(cache_memory_problems(on_disk, SIZES, free=lambda: GB, **facts)) == []


def test_every_cached_variation_of_an_image_counts(tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2)
    concept = {"path": str(images), "image_variations": 3, "image": {"flip": "random"}}
    held_out = {**concept, "kind": "validation"}  # never varied
    datasets = datasets_of(small_config(tmp_path, model=tmp_path, images=images, concepts=[concept, held_out]))
    assert cached_sizes_of(datasets.training, datasets.validation) == {Size(64, 64): 2 * 3 + 2}


def test_a_disk_with_unknown_space_is_not_reported(tmp_path: Path) -> None:
    facts = {"num_captions": 1, "total_steps": 1}
    assert list(disk_problems(budget_of_run(config(tmp_path), SIZES), SIZES, free=lambda path: None, **facts)) == []


# -- the driver's tool

NVIDIA = "0, GPU-aaaa, 24576, 20000\n1, GPU-bbbb, 81920, 81000\n"
AMD = "device,VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard0,17163091968,1000000000\n"


def answering(**answers: str) -> Any:
    def ask(command: Sequence[str]) -> str:
        tool = command[0].removesuffix("-smi")
        if tool not in answers:
            raise FileNotFoundError(command[0])
        return answers[tool]

    return ask


@pytest.mark.parametrize(
    ("device", "free_mib"), [("auto", 20000), ("", 20000), ("cuda", 20000), ("CUDA:0", 20000), ("cuda:1", 81000)]
)
def test_the_gpu_of_a_device_name(device: str, free_mib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = gpu_memory(device, ask=answering(nvidia=NVIDIA))
    assert found is not None
    assert found.free_bytes == free_mib << 20
    assert found.total_bytes > found.free_bytes


@pytest.mark.parametrize(("visible", "free_mib"), [("1", 81000), ("1,0", 81000), ("GPU-bb", 81000), ("0", 20000)])
def test_cards_that_are_hidden_are_not_counted(visible: str, free_mib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = gpu_memory("cuda", ask=answering(nvidia=NVIDIA))
    assert found is not None
    assert found.free_bytes == free_mib << 20


def test_a_card_of_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_memory("auto", ask=answering(rocm=AMD)) == GpuMemory(17163091968, 16163091968)


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda:7", "cuda:x", "nonsense", "cuda:"])
def test_a_device_that_is_no_card(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_memory(device, ask=answering(nvidia=NVIDIA, rocm=AMD)) is None


@pytest.mark.parametrize("text", ["", "No devices were found\n", "0, GPU-a, [N/A], [N/A]\n", "0, GPU-a\n", "\0,,,\n"])
def test_odd_answers_are_no_answer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_memory("auto", ask=answering(nvidia=text, rocm=text)) is None


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("no tool"),
        PermissionError("may not"),
        subprocess.TimeoutExpired("tool", 2),
        subprocess.CalledProcessError(9, "tool"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_tool_that_fails_is_no_answer(error: Exception) -> None:
    def ask(command: Sequence[str]) -> str:
        raise error

    assert gpu_memory("auto", ask=ask) is None


def test_budgets_need_no_torch() -> None:
    code = "import sys, trainer.preflight.budget; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, check=False).returncode == 0
