"""Fit to my card: what is proposed is within the estimate, and the fastest of all candidates."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from modules.config.codec import load_file, save_file
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.step_time import StepFacts, kernels_of, step_time
from modules.settings.edit import get_path, replace_value
from modules.system.errors import DarkroomError
from tests.unit.preflight.setups import changed
from trainer.__main__ import main
from trainer.jobs.fit import card_of
from trainer.preflight.fit import Fit, describe_fit, fit_budget
from trainer.preflight.moves import Move, choices, sacrifices
from trainer.preflight.run_budget import Budget, budget_of, on_a_gpu
from trainer.preflight.search import StepTimes, advice, candidates, peak_with

GB = 1_000_000_000
CARDS = (6, 8, 10, 12, 16, 24)
BASES = {"sd": "stable-diffusion-v1-5/stable-diffusion-v1-5", "sdxl": "stabilityai/stable-diffusion-xl-base-1.0"}
SIDES = {"sd": 512, "sdxl": 1024}
TARGETS = ("adapter", "full", "embedding", "vae")
BF16 = {name: {"dtype": "bfloat16"} for name in ("unet", "text_encoder", "text_encoder_2")}


@lru_cache
def budget(family: str, trains: str, **changes: Any) -> Budget:
    """The budget of a run with the defaults; its walks are shared by all tests."""
    words = {"embeddings": {"words": [{"placeholder": "tok"}]}} if trains == "embedding" else {}
    training = {"precision": "bfloat16", "batch_size": 4, "trains": trains, **changes}
    config = Config.model_validate(
        {"model": {"family": family, "base_model": BASES[family]}, "training": training, **words}
    )
    found = budget_of(config, {Size(SIDES[family], SIDES[family]): 20})
    assert found is not None
    return on_a_gpu(found)


def peak(config: Config, base: Budget) -> int:
    changed_budget = base.with_config(config)
    assert changed_budget is not None
    return changed_budget.peak_bytes


def check_cell(base: Budget, card_gb: int) -> Fit:
    """Check a proposal: within the estimate or said not to be, its facts those of its config, and no new errors."""
    found = fit_budget(base, card_bytes=card_gb * GB)
    assert found.after_bytes == peak(found.config, base)
    assert found.fits == (found.after_bytes <= found.limit_bytes < card_gb * GB)
    assert found.before_bytes - sum(c.saved_bytes for c in found.changes) == found.after_bytes
    product = 1.0
    for change in found.changes:
        product *= change.time_factor
    assert product == pytest.approx(found.time_factor)
    training, before = found.config.training, base.config.training
    assert training.batch_size * training.accumulation_steps == before.batch_size * before.accumulation_steps
    assert (training.trains, training.optimizer.name) == (before.trains, before.optimizer.name)
    assert not any(c.move.changes_result for c in found.changes)
    errors = {p.path for p in problems_of(found.config) if p.severity != "info"}
    assert errors <= {p.path for p in problems_of(base.config)}
    assert ("keep what the run learns" in describe_fit(found)) == (not found.fits)
    return found


def check_against_all(base: Budget, found: Fit) -> None:
    """Compare a proposal with the estimate of every candidate."""
    peaks = [(peak(c.config, base), c.time) for c in candidates(base)]
    fitting = [time for size, time in peaks if size <= found.limit_bytes]
    if found.fits:
        assert StepTimes(base).of(found.config) == pytest.approx(min(fitting), rel=1e-9)
    else:
        assert not fitting
        assert found.after_bytes == min(size for size, _ in peaks)


@pytest.mark.full
@pytest.mark.parametrize(("trains", "card_gb"), [("adapter", 3), ("full", 8), ("vae", 1)])
def test_the_proposal_is_the_fastest_that_fits(trains: str, card_gb: int) -> None:
    base = budget("sd", trains, batch_size=1)
    check_against_all(base, check_cell(base, card_gb))


@pytest.mark.full
@pytest.mark.parametrize("card_gb", CARDS)
@pytest.mark.parametrize("trains", TARGETS)
@pytest.mark.parametrize("family", ["sd", "sdxl"])
def test_the_proposal_is_the_fastest_that_fits_on_every_card(family: str, trains: str, card_gb: int) -> None:
    base = budget(family, trains)
    check_against_all(base, check_cell(base, card_gb))


def test_sdxl_fits_a_small_card_and_says_what_it_costs() -> None:
    single = budget("sdxl", "adapter", batch_size=1)
    base = single.with_config(single.config.model_copy(update={"parts": parts(BF16)}))
    assert base is not None
    found = check_cell(base, 8)
    assert found.fits
    assert found.time_factor > 1
    assert "A step takes about" in describe_fit(found)
    assert {c.move.path for c in found.changes} >= {"parts.unet.dtype", "parts.unet.checkpointing"}


def test_a_large_card_takes_what_only_costs_time_away() -> None:
    careful = {"unet": {"dtype": "bfloat16", "checkpointing": "block", "offload_activations": True}}
    slow = budget("sd", "adapter").with_config(
        budget("sd", "adapter").config.model_copy(update={"parts": parts(careful)})
    )
    assert slow is not None
    found = check_cell(slow, 80)
    assert found.config.part("unet").checkpointing == "off"
    assert not found.config.part("unet").offload_activations
    assert found.time_factor < 1
    assert "% of the time" in describe_fit(found)


def parts(tree: dict[str, Any]) -> Any:
    return Config.model_validate({"parts": tree}).parts


@pytest.mark.parametrize(("trains", "card_gb"), [("adapter", 4), ("full", 10), ("full", 12), ("vae", 4)])
def test_the_advice_is_enough_and_has_nothing_that_is_not_needed(trains: str, card_gb: int) -> None:
    base, limit_bytes = budget("sd", trains, batch_size=1), round(0.95 * card_gb * GB)
    moves = [worth.move for worth in advice(base, limit_bytes=limit_bytes)]
    assert moves
    assert peak_with(base, moves) <= limit_bytes
    for move in moves:
        rest = [m for m in moves if m is not move]
        assert peak_with(base, rest) > limit_bytes
        for milder in milder_options(base, move):
            assert peak_with(base, [*rest, milder]) > limit_bytes, milder.words
    assert any(m.changes_result for m in moves) == (trains == "full")  # where offloading takes many times as long


@pytest.mark.parametrize("card_gb", [6, 12])
def test_the_advice_for_a_lora_of_sdxl_has_the_mildest_options(card_gb: int) -> None:
    base, limit_bytes = budget("sdxl", "adapter"), round(0.95 * card_gb * GB)
    moves = [worth.move for worth in advice(base, limit_bytes=limit_bytes)]
    assert peak_with(base, moves) <= limit_bytes
    for move in moves:
        for milder in milder_options(base, move):
            assert peak_with(base, [milder if m is move else m for m in moves]) > limit_bytes, milder.words


def milder_options(base: Budget, move: Move) -> list[Move]:
    """The options that keep more memory than a move, without those that are slower than it."""
    options = next((c.leaner for c in choices(base) if move in c.leaner), ())
    times = StepTimes(base)
    time = times.of(move.apply_to(base.config))
    return [m for m in options[: options.index(move)] if times.of(m.apply_to(base.config)) < time] if options else []


def test_a_fused_backward_pass_is_kept_when_the_optimizer_changes_too() -> None:
    base = budget("sd", "full", batch_size=1)
    fused = next(m for c in choices(base) for m in c.leaner if m.path.endswith("fused_back_pass"))
    other = next(m for m in sacrifices(base) if m.path == "training.optimizer.name")
    assert peak_with(base, [fused, other]) == peak_with(base, [other, fused]) < peak_with(base, [other])


def test_what_changes_the_result_is_only_told() -> None:
    found = fit_budget(budget("sd", "full"), card_bytes=4 * GB)
    assert not found.fits
    assert found.further
    assert all(w.move.changes_result and w.saved_bytes > 0 for w in found.further)
    assert "change what the run learns" in describe_fit(found)


def test_nothing_is_offloaded_where_there_is_no_other_device_and_nothing_selective_on_a_cpu() -> None:
    config = budget("sd", "adapter").config
    cpu = config.model_copy(update={"general": config.general.model_copy(update={"train_device": "cpu"})})
    base = budget_of(cpu, {Size(512, 512): 20})
    assert base is not None
    for candidate in candidates(on_a_gpu(base)):
        part = candidate.config.part("unet")
        assert (part.offload_fraction, part.offload_activations) == (0, False)
        assert part.checkpointing != "selective"


def test_a_learning_rate_that_follows_the_batch_keeps_it() -> None:
    base = budget("sd", "adapter", learning_rate_scaler="batch")
    assert {c.config.training.batch_size for c in candidates(base)} == {4}


def test_accumulation_and_a_fused_backward_pass_exclude_each_other() -> None:
    found = candidates(budget("sd", "full"))
    fused = {c.config.training.accumulation_steps for c in found if c.config.training.optimizer.fused_back_pass}  # type: ignore[attr-defined]
    assert fused == {1}
    assert {c.config.training.accumulation_steps for c in found} == {1, 2, 4}


def facts(**changes: Any) -> StepFacts:
    values: dict[str, Any] = {
        "num_weights": 2_570_000_000, "weight_bytes": 2.0, "pixels": 1024 * 1024, "batch_size": 4,
        "accumulation_steps": 1, "num_trained": 23_000_000, "num_encoder_weights": 0, "trains_weights": False,
        "checkpointing": "off", "num_operations": 1843,
    }  # fmt: skip
    return StepFacts(**{**values, **changes})


@pytest.mark.parametrize(
    "slower",
    [
        {"checkpointing": "transformer"},
        {"checkpointing": "block"},
        {"checkpointing": "block", "offloads_activations": True},
        {"offload_fraction": 0.5},
        {"unpacking_bytes": 3.0, "weight_bytes": 1.05},
        {"batch_size": 1, "accumulation_steps": 4},
        {"moves_average": True},
        {"is_fused": True},
    ],
    ids=str,
)
def test_each_saving_costs_time(slower: dict[str, Any]) -> None:
    assert step_time(facts(**slower)) > step_time(facts())


def test_selective_checkpointing_pays_only_for_large_batches_on_a_gpu() -> None:
    def gain(**where: Any) -> float:
        return step_time(facts(checkpointing="block", **where)) - step_time(facts(checkpointing="selective", **where))

    assert gain(batch_size=8) > 0
    assert gain(batch_size=1) < 0
    assert gain(batch_size=8, on_gpu=False) < 0


@pytest.mark.parametrize(
    ("has_autocast", "checkpointing", "counted"),
    [(True, "off", 16_224), (True, "block", 23_248), (False, "off", 7_380), (False, "block", 10_162)],
)
def test_the_kernels_of_an_sdxl_lora_are_those_that_are_counted(
    has_autocast: bool, checkpointing: str, counted: int
) -> None:
    """1,843 operations in the recorded pass and 722 layers, as `python -m benchmarks kernels` counts them."""
    passes = budget("sdxl", "adapter").passes
    assert passes.num_operations("unet", fuses_norms=not has_autocast) == 1843
    given = facts(num_factors=2 * 722, has_autocast=has_autocast, checkpointing=checkpointing)
    assert kernels_of(given) == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize(
    ("has_autocast", "checkpointing", "counted"),
    [(True, "off", 9_150), (True, "block", 12_600), (False, "off", 3_299), (False, "block", 4_589)],
)
def test_the_kernels_of_a_z_image_lora_are_those_that_are_counted(
    has_autocast: bool, checkpointing: str, counted: int
) -> None:
    """Its RMS norms are one operation each without autocast, and eight with it; 207 layers."""
    z_image = Config.model_validate({"model": {"family": "z_image", "base_model": "Tongyi-MAI/Z-Image"}})
    of_z_image = budget_of(z_image, {Size(512, 512): 20})
    assert of_z_image is not None
    operations = of_z_image.passes.num_operations("transformer", fuses_norms=not has_autocast)
    given = facts(
        num_operations=operations, num_factors=2 * 207, has_autocast=has_autocast, checkpointing=checkpointing
    )
    assert kernels_of(given) == pytest.approx(counted, rel=0.08)


def test_norms_are_fused_on_cuda_alone() -> None:
    """A step in bfloat16 without autocast needs more memory on another device, which has them written out."""
    training = {"precision": "bfloat16", "trains": "adapter"}
    of_cpu, of_mps, of_cuda = (
        budget_of(
            Config.model_validate(
                {
                    "model": {"family": "z_image", "base_model": "Tongyi-MAI/Z-Image"},
                    "training": training,
                    "parts": {"transformer": {"dtype": "bfloat16", "checkpointing": "off"}},
                    "general": {"train_device": device},
                }
            ),
            {Size(512, 512): 20},
        )
        for device in ("cpu", "mps", "cuda")
    )
    assert of_cpu is not None
    assert of_mps is not None
    assert of_cuda is not None
    assert activations(of_cpu) == activations(of_mps) > 1.3 * activations(of_cuda)
    assert activations(on_a_gpu(of_mps)) == activations(of_cuda)
    again = on_a_gpu(of_mps).with_config(of_mps.config)
    assert again is not None
    assert activations(again) == activations(of_cuda)
    operations = [StepTimes(b).facts(b.config).num_operations for b in (of_mps, of_cuda)]
    assert operations[0] > 1.5 * operations[1]


def activations(budget: Budget) -> int:
    training = budget.memory().phase("training")
    assert training is not None
    return dict(training.parts)["activations"]


def test_the_transformer_blocks_of_a_transformer_are_all_its_blocks() -> None:
    """Recomputing them takes as long as recomputing every block; of a UNet's blocks they are a part."""
    z_image = Config.model_validate({"model": {"family": "z_image", "base_model": "Tongyi-MAI/Z-Image"}})
    of_z_image = budget_of(z_image, {Size(512, 512): 20})
    assert of_z_image is not None
    times = {}
    for part, base in (("unet", budget("sdxl", "adapter")), ("transformer", of_z_image)):
        configs = [replace_value(base.config, f"parts.{part}.checkpointing", m) for m in ("transformer", "block")]
        some, every = map(StepTimes(on_a_gpu(base)).of, configs)
        times[part] = some / every
    assert times["transformer"] == 1
    assert times["unet"] < 0.95


@pytest.mark.parametrize(("text", "size"), [("8GB", 8 * GB), ("8", 8 * GB), ("7.5 gb", 7.5 * GB), ("8GiB", 8 << 30)])
def test_sizes_of_cards(text: str, size: float) -> None:
    assert card_of(text, Config()) == (size, False)


@pytest.mark.parametrize("text", ["big", "-8GB", "8 TB", "0"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(DarkroomError, match="not a size"):
        card_of(text, Config())


def test_check_shows_the_table_and_saves_only_where_asked(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, saved = tmp_path / "config.json", tmp_path / "fits.json"
    large = changed(config, training__batch_size=2, training__precision="bfloat16", model__base_model=BASES["sd"])
    save_file(large, file)
    before = file.read_bytes()
    main(["check", str(file), "--fit", "3GB", "--save", str(saved)])
    shown = capsys.readouterr().out
    assert "Time of a step" in shown
    assert f"Saved as {saved}." in shown
    assert file.read_bytes() == before
    main(["check", "--json", str(file), "--fit", "3GB"])
    data = json.loads(capsys.readouterr().out)["fit"]
    assert data["fits"]
    assert data["after_bytes"] <= data["limit_bytes"] < data["before_bytes"]
    now = load_file(saved).config
    for path, value in (pair for change in data["changes"] for pair in change["values"].items()):
        assert get_path(now, path) == value
    assert main(["train", str(file), "--fit", "1MB"]) != 0
    said = capsys.readouterr().err
    assert "No settings that keep what the run learns fit" in said
    assert "nothing was started" in said
