"""The benchmark: the same work in both loops, compared pair by pair. No time is asserted."""

from __future__ import annotations

import gc
import json
import subprocess
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageStat
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    dataset_size,
    full_size,
    measure,
    preference,
    preference_cases,
    preference_command,
    preference_data,
    random_models,
    report,
    saving_memory,
)
from benchmarks.demo_runs import demo_preset
from benchmarks.loop_speed import demo_config, loop_against_bare
from benchmarks.loop_variants import LoopVariant, fastest_together, measure_variants
from benchmarks.measure import Ratio, compare
from benchmarks.start_time import BEFORE_FIRST_EVENT, time_by_phase
from benchmarks.waiting import waiting_share
from demo.make.shapes import COLOURS, SHAPES
from modules.config.schema import Config
from modules.config.sections.general import General
from modules.data.captions.sources import CaptionOrigin
from modules.data.scan import scan_folder
from modules.families.parts.folder_model import folder_configs
from modules.families.parts.single_file.write import CheckpointTraits
from modules.memory.compiled_blocks import Compilation
from modules.objectives.registry import METHODS
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.more_models import POOLED_WIDTH
from trainer.data.datasets import datasets_of
from trainer.events import Event, PhaseChanged, StepFinished, WarningRaised
from trainer.run.finish import PreparedRun
from trainer.run.reading import load_family
from trainer.run.setup import RunSetup


def test_pairs_take_turns_and_the_first_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = [0.0], []

    def work(name: str, seconds: list[float]) -> None:
        order.append(name)
        now[0] += seconds[order.count(name) - 1]

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    ratio = compare(
        lambda: work("ours", [100.0, 2.0, 4.0, 1.0]), lambda: work("bare", [50.0, 1.0, 3.0, 1.0]), rounds=3, device=CPU
    )
    assert order == ["ours", "bare", "ours", "bare", "bare", "ours", "ours", "bare"]
    assert (ratio.ratio, ratio.lowest, ratio.highest) == (0.75, 0.5, 1.0)
    assert (ratio.ours_seconds, ratio.bare_seconds, ratio.rounds) == (2.0, 1.0, 3)


def test_variants_are_measured_alone_and_the_faster_ones_together() -> None:
    """On a machine without a compiler, of which its rows tell."""
    seen: dict[str, Config] = {}

    def measure(variant: LoopVariant) -> Ratio:
        training, model = variant.config.training, variant.config.model
        seen[variant.name] = variant.config
        assert variant.plain.training.trains == training.trains
        if model.compile == "on":
            raise DarkroomError("It cannot be compiled, because it needs a C++ compiler, and none was found.")
        fused = getattr(training.optimizer, "fused", False)
        speed = 1.0 + 0.2 * fused + 0.1 * (model.channels_last == "on") + 0.01 * (training.attention == "sdpa_math")
        return Ratio(speed, speed, speed, 1.0, speed, 1)

    rows = {row.name: row for row in measure_variants(Config(general=General(train_device="cpu")), measure)}
    assert len(rows) == 22
    together = seen["LoRA, all of these: fused optimizer, channels last"]
    assert (together.model.channels_last, together.training.attention, together.model.compile) == ("on", "sdpa", "auto")
    assert rows["fine-tune, compiled"].speed is None
    assert "C++ compiler" in rows["fine-tune, compiled"].reason
    assert seen["LoRA, attention PyTorch: math"].training.attention == "sdpa_math"
    without, with_cache = (seen[f"LoRA, bfloat16 {word} autocast cache"].training for word in ("without", "with"))
    assert (without.autocast_cache, with_cache.autocast_cache, with_cache.precision) == (False, True, "bfloat16")


def test_of_changes_that_replace_each_other_only_the_fastest_counts() -> None:
    speeds = {"fused optimizer": 1.1, "foreach optimizer": 1.2, "compiled": 1.3, "channels last": 1.01}
    assert fastest_together(speeds) == ["foreach optimizer", "compiled"]
    assert fastest_together(dict.fromkeys(speeds, 0.9)) == []


def test_a_loop_that_cannot_be_compiled_is_not_measured(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_self: Compilation, *_: object) -> None:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(Compilation, "_compile_graph", fails)
    base = small_config(tmp_path, model=tiny_sd, images=images)
    config = demo_config(laid_over(base, {"model": {"compile": "on"}}), tmp_path, repeats=1, epochs=1000)
    with pytest.raises(DarkroomError, match=r"because it needs a C\+\+ compiler"):
        loop_against_bare(config, rounds=1, num_threads=1, plain=base)


def test_both_loops_do_the_same_steps(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    step = torch.optim.AdamW.step

    def counted(self: torch.optim.AdamW, *arguments: object) -> object:
        steps.append(sum(len(g["params"]) for g in self.param_groups))
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", counted)
    base = small_config(tmp_path, model=tiny_sd, images=images)
    ratio = loop_against_bare(demo_config(base, tmp_path, repeats=1, epochs=1000), rounds=1, num_threads=1)
    assert ratio.ratio > 0
    # Two rounds (one does not count) of each loop, all of them over the same parameters.
    per_round = len(steps) // 4
    assert per_round >= 2
    assert len(steps) == 4 * per_round
    assert len(set(steps)) == 1


def test_the_share_of_waiting_is_that_of_all_batches(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    base = small_config(tmp_path, model=tiny_sd, images=images)
    config = demo_config(base, tmp_path, repeats=1, epochs=1000)
    found = waiting_share(config, rounds=2, num_threads=1)
    steps_per_epoch = datasets_of(config).plans.num_steps(0)
    assert found.num_steps == 2 * steps_per_epoch
    assert 0 < found.waited_seconds < found.total_seconds
    assert found.share == found.waited_seconds / found.total_seconds


@pytest.mark.full
def test_what_saves_memory_is_measured_against_nothing_saved(
    tiny_sdxl: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, waiting = "checkpointing per block", "per block, all layers offloaded"
    monkeypatch.setattr(saving_memory, "WAYS", {way: saving_memory.WAYS[way] for way in (blocks, waiting)})
    base = small_config(tmp_path, model=tiny_sdxl, images=images, general={"temp_device": "cpu:1"})
    config = saving_memory.of_denoiser(demo_config(base, tmp_path, repeats=1, epochs=1000), trains="full")
    savings = {s.way: s for s in saving_memory.ways_against_none(config, rounds=1, num_threads=1)}
    assert all(s.speed.ratio > 0 for s in savings.values())
    (plain,) = {s.plain_peak_bytes for s in savings.values()}
    assert savings[waiting].peak_bytes < 0.5 * savings[blocks].peak_bytes < 0.5 * plain
    row = report._saving_row("small SDXL", "full", savings[waiting])
    assert row.name == "small SDXL, fine-tune: per block, all layers offloaded"
    assert f"{savings[waiting].peak_bytes / plain:.2f} of the memory" in row.value


@pytest.mark.full
def test_a_step_s_time_memory_and_flops_are_reported_beside_the_estimate(tiny_sdxl: Path, tmp_path: Path) -> None:
    base = small_config(tmp_path, model=tiny_sdxl, images=tmp_path, general={"temp_device": "cpu:1"})
    base = demo_config(base, tmp_path, repeats=1, epochs=1000)
    images = full_size.draw_noise(tmp_path / "noise", num_images=2, side_px=64)
    (name, case), *_ = full_size.CASES.items()
    config = full_size.full_size_config(base, tiny_sdxl, images, case, side_px=64)
    found = full_size.measure_steps(name, config, CPU, seconds=0.0, num_threads=1)
    assert found.step_flops > 2 * count_flops_of_a_prediction(config)
    assert found.flops_per_second == found.step_flops / found.step_seconds
    assert 0.7 < found.predicted_bytes / found.peak_bytes < 1.3
    row = report._full_size_row("tiny SDXL", found)
    assert f"estimated {found.predicted_bytes / 2**30:.3f} GiB" in row.value


@pytest.mark.full
def test_the_weights_of_a_run_that_is_over_do_not_count_in_the_next_ones_peak(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the allocator counts all that lives."""
    base = small_config(tmp_path, model=tiny_sd, images=images, parts={"unet": {"checkpointing": "block"}})
    config = demo_config(base, tmp_path, repeats=1, epochs=1000)
    weights: list[weakref.ref[torch.Tensor]] = []
    plain_prepare, living = saving_memory.prepare, []

    def prepared(setup: RunSetup) -> PreparedRun:
        living.append(sum(weight() is not None for weight in weights))
        run = plain_prepare(setup)
        weights.extend(weakref.ref(p) for p in run.model.family.parts["unet"].module.parameters())
        return run

    monkeypatch.setattr(saving_memory, "prepare", prepared)
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(2):
            saving_memory.peak_of(config)
    finally:
        if was_collecting:
            gc.enable()
    assert weights
    assert living == [0, 0]


def count_flops_of_a_prediction(config: Config) -> int:
    """What one forward pass of the UNet computes: a step does it, again under checkpointing, and goes back."""
    unet = load_family(config.model, config.part).parts["unet"].module
    noisy, states = torch.zeros(1, 4, 8, 8), torch.zeros(1, 77, unet.config.cross_attention_dim)
    sizes = {"text_embeds": torch.zeros(1, POOLED_WIDTH), "time_ids": torch.zeros(1, 6)}
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
        unet(noisy, torch.zeros(1), encoder_hidden_states=states, added_cond_kwargs=sizes)
    return counter.get_total_flops()


@pytest.mark.parametrize("model", ["sd", "sdxl"])
def test_a_model_of_random_weights_has_the_published_shapes(
    request: pytest.FixtureRequest, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = request.getfixturevalue(f"tiny_{model}")
    parts = ("unet", "vae", "text_encoder", *(("text_encoder_2",) if model == "sdxl" else ()))
    published = "sdxl" if model == "sdxl" else "sd1"
    configs_like = folder_configs(like, CheckpointTraits(published), parts)
    monkeypatch.setattr(random_models, "shipped_configs", lambda _name: configs_like)
    folder = random_models.write_random_model(tmp_path / "random", random_models.Shapes(published))
    configs = [small_config(tmp_path, model=place, images=tmp_path) for place in (folder, like)]
    written, original = (load_family(c.model, c.part).parts for c in configs)
    for name in parts:
        ours, theirs = (found[name].module.state_dict() for found in (written, original))
        assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}
        assert all(v.isfinite().all() for v in ours.values())


def test_preference_methods_are_measured_on_prompts_that_they_do_not_train_on() -> None:
    learned, held_out = preference_data.open_prompts()
    choosing, reported = preference_data.choosing_split(), preference_data.reported_split()
    assert [p.text for p in reported.measured] == [p.text for p in held_out]
    assert not {p.text for p in choosing.measured} & {p.text for p in (*held_out, *choosing.learned)}
    assert {p.scene.shape for p in choosing.measured} == {p.scene.shape for p in choosing.learned} == set(SHAPES)
    seeds = {range(s.first_seed, s.first_seed + s.per_prompt * len(s.measured)) for s in (choosing, reported)}
    one, other = (set(r) for r in seeds)
    assert not one & other
    assert choosing.run_seed != reported.run_seed
    assert not {p.text for p in learned} & {p.text for p in held_out}
    for prompts in (learned, held_out):
        assert len(prompts) == 24
        assert {p.scene.shape for p in prompts} == set(SHAPES)
        assert {p.scene.colour for p in prompts} == set(COLOURS)
    assert {case.name for case in preference_cases.CASES} == {n for n in METHODS if n != "denoise"}


@pytest.mark.full
def test_preference_methods_train_as_runs_do_and_their_unet_calls_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the demo model, with far fewer images and steps: four prompts, and four held-out ones."""
    monkeypatch.setattr(preference_data, "SHAPES", {"circle": SHAPES["circle"]})
    monkeypatch.setattr(preference_data, "NUM_STEPS", 2)
    monkeypatch.setattr(preference_data, "CANDIDATES", 2)
    monkeypatch.setattr(preference_data, "PAIRS_PER_PROMPT", 1)
    split = replace(preference_data.reported_split(), per_prompt=1)
    start = preference.start_runs(demo_preset(CPU), tmp_path, split, guidance=2.0, num_threads=1)
    assert start.pair_calls == 2  # one batch of eight images
    chosen, rejected = (sorted((start.pairs / side).glob("*.png")) for side in ("chosen", "rejected"))
    assert [p.name for p in chosen] == [p.name for p in rejected]
    assert len(chosen) == 4
    for paths in zip(chosen, rejected, strict=True):
        brighter, darker = (ImageStat.Stat(Image.open(path)).sum for path in paths)
        assert sum(brighter) >= sum(darker)
    [reward_case, pair_case] = [
        next(case for case in preference_cases.CASES if case.name == name) for name in ("alignprop", "dpo")
    ]
    reward_case = replace(reward_case, method={**reward_case.method, "steps": 3}, epochs=2, batch_size=2)
    learned = preference.train_case(tmp_path, reward_case, start, num_threads=1)
    # Four steps with three denoising steps each, of two prompts with guidance.
    assert (learned.steps, learned.calls, learned.latents) == (4, 12, 12 * 4)
    assert learned.after.reward > start.before.reward
    learned = preference.train_case(tmp_path, replace(pair_case, epochs=1, batch_size=4), start, num_threads=1)
    assert (learned.steps, learned.calls, learned.latents) == (1, 2, 2 * 8)  # the model and its reference
    row = preference_command.trained_row(pair_case, start, learned)
    assert row.name == "Diffusion-DPO, LoRA"
    assert row.value.endswith("2 calls, 16 latents")


def test_the_rate_that_is_chosen_has_the_highest_reward_of_those_that_keep_the_shapes() -> None:
    before = preference.Measurement(0.5, 0.1, 0.8)
    found = {
        rate: preference.Measurement(reward, 0.1, shapes)
        for rate, reward, shapes in ((1e-3, 0.55, 0.8), (2e-3, 0.6, 0.7), (4e-3, 0.9, 0.1))
    }
    assert preference_command.best_rate(found, before) == 2e-3
    ruined = {rate: replace(m, right_shapes=0.1) for rate, m in found.items()}
    assert preference_command.best_rate(ruined, before) == 1e-3


def test_the_windows_own_figures_become_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = {
        "start_seconds": [1.0, 1.2, 1.1],
        "start_median_seconds": 1.1,
        "gaps": [
            {"phase": "training", "seconds": 30.0, "num_beats": 3, "p50_ms": 10.0, "p99_ms": 21.4, "max_ms": 40.0}
        ],
    }
    done = subprocess.CompletedProcess([], 0, json.dumps(reported, indent=1), "")
    monkeypatch.setattr(report.subprocess, "run", lambda *a, **k: done)
    start, gaps = report._window()
    assert start.value == "1.10 s (1.00 to 1.20)"
    assert (gaps.name, gaps.value) == ("window gaps, training", "p99 21 ms, max 40 ms over 30 s")


def test_a_window_that_does_not_open_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: there is no display\n")
    monkeypatch.setattr(report.subprocess, "run", lambda *a, **k: done)
    (row,) = report._window()
    assert row.value == "not measured: RuntimeError: there is no display"


def test_the_time_to_the_first_step_by_phase() -> None:
    step = StepFinished(1, 1, 1, 2, 1, 2, 0.1, 0.1, None, 2.0, 1.0)
    events: list[tuple[float, Event | None]] = [
        (1.0, PhaseChanged("starting")), (3.0, PhaseChanged("loading")), (3.5, WarningRaised("")),
        (4.0, PhaseChanged("scanning")), (4.5, PhaseChanged("loading")), (5.0, PhaseChanged("training")),
        (6.0, step), (7.0, PhaseChanged("training")), (8.0, step), (8.5, PhaseChanged("saving")), (10.0, None),
    ]  # fmt: skip
    found = time_by_phase(events)
    assert found.phases == {BEFORE_FIRST_EVENT: 1.0, "starting": 2.0, "loading": 1.5, "scanning": 0.5, "training": 1.0}
    assert (found.until_first_step, found.ending) == (6.0, 2.0)
    with pytest.raises(ValueError):
        time_by_phase(events[:3])


def test_starts_with_many_images_are_timed(tmp_path: Path) -> None:
    (first,) = dataset_size.measure_stages(tmp_path, 3, ["first scan"])
    assert set(first.seconds) == {"scan", "save"}
    assert first.peak_bytes > 0
    assert (tmp_path / "cache" / "images.sqlite").exists()
    scan = scan_folder(tmp_path / "images", include_subfolders=True, captions=CaptionOrigin())
    assert len(scan.images) == 3
    assert all(image.captions for image in scan.images)
    assert not scan.skipped
