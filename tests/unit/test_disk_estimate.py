"""The disk space of a run: sizes from shapes, and the free space at its destination."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.data.buckets import Size
from modules.estimate.disk import (
    DiskNeed,
    backup_bytes,
    file_system_of,
    free_bytes,
    latents_bytes,
    num_backups,
    result_bytes,
    text_bytes,
)
from modules.estimate.passes import PartWeights
from modules.families.spec import LatentSpec
from modules.memory.part_plan import PartPlan
from modules.optim.optimizers.adamw import AdamW
from modules.optim.optimizers.sums import Sgd
from tests.builders.adapter_plans import lora_plan

LORA = PartPlan(weight_bytes=2, trains="adapter", adapter=lora_plan(4, 4, ("attn",)))
WEIGHTS = {
    "unet": PartWeights({"attn.weight": (10, 10), "norm.weight": (10,)}, {"attn.lora_A.weight": (4, 10)}),
    "vae": PartWeights({"conv.weight": (3, 3, 1, 1)}, {}),
}
WITHOUT_ADAPTER = {name: PartWeights(part.shapes, {}) for name, part in WEIGHTS.items()}


def backup(plan: PartPlan, **changes: Any) -> int:
    facts = {"optimizer": AdamW(), "has_master_weights": True, "has_average": False, **changes}
    weights = WEIGHTS if plan.trains == "adapter" else WITHOUT_ADAPTER
    return backup_bytes(weights, {"unet": plan, "vae": PartPlan()}, **facts)


def test_a_backup_of_a_lora_contains_it_and_its_optimizer_state() -> None:
    assert backup(LORA) == 40 * (4 + 8)
    assert backup(LORA, has_average=True) == 40 * (4 + 8 + 4)
    assert backup(LORA, optimizer=Sgd(momentum=0.9)) == 40 * (4 + 4)
    assert backup(LORA, optimizer=Sgd()) == 40 * 4


def test_a_backup_of_a_fine_tune_contains_master_weights() -> None:
    full = PartPlan(weight_bytes=2, trains="full")
    assert backup(full) == 110 * (4 + 8)
    assert backup(full, has_master_weights=False) == 110 * (2 + 8)


def test_a_backup_contains_a_refreshed_reference_in_the_weight_dtype() -> None:
    assert backup(PartPlan(weight_bytes=2, trains="full"), has_reference=True) == 110 * (4 + 2 + 8)
    assert backup(LORA, has_reference=True) == 40 * (4 + 4 + 8)


def test_layers_without_gradient_are_in_no_backup() -> None:
    assert backup(PartPlan(trains="full", unreached=("norm",))) == 100 * (4 + 8)


def test_untrained_weights_are_in_no_backup() -> None:
    assert backup(PartPlan()) == 0


def test_the_result_is_the_whole_model_or_the_adapter() -> None:
    plans = {"unet": LORA, "vae": PartPlan()}
    assert result_bytes(WEIGHTS, plans, is_whole_model=True, item_bytes=2) == 2 * (110 + 9)
    assert result_bytes(WEIGHTS, plans, is_whole_model=False, item_bytes=2) == 2 * 40


sizes = st.builds(Size, st.integers(64, 4096), st.integers(64, 4096), st.integers(1, 65))


@given(st.dictionaries(sizes, st.integers(0, 10_000), max_size=6))
def test_latents_need_at_least_the_bytes_of_their_values(counts: dict[Size, int]) -> None:
    numbers = sum(
        n * 4 * (1 + (size.num_frames - 1) // 4) * (size.height_px // 8) * (size.width_px // 8) * 4
        for size, n in counts.items()
    )
    found = latents_bytes(counts, LatentSpec(channels=4, factor=8, frame_factor=4), item_bytes=4)
    assert numbers <= found <= numbers + 2048 * sum(counts.values())


def test_the_empty_caption_is_cached_too() -> None:
    assert text_bytes(0, num_elements=77 * 768, item_bytes=4) > 77 * 768 * 4
    one = text_bytes(1, num_elements=77 * 768, item_bytes=4)
    assert one == 2 * text_bytes(0, num_elements=77 * 768, item_bytes=4)


@pytest.mark.parametrize(
    ("keep", "expected", "number"), [(3, 100, 4), (3, 2, 2), (0, 100, 100), (0, 0, 1), (1, 1.2, 2), (5, 0, 1)]
)
def test_the_number_of_backups_at_a_time(keep: int, expected: float, number: int) -> None:
    assert num_backups(keep, expected) == number


def test_both_caches_are_one_sum() -> None:
    assert DiskNeed(backup_bytes=1, result_bytes=2, latents_bytes=30, text_bytes=12).cache_bytes == 42


def test_free_space_is_that_of_the_nearest_existing_folder(tmp_path: Path) -> None:
    deep = tmp_path / "not" / "there" / "file.safetensors"
    found = free_bytes(deep)
    assert found is not None
    assert found == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert file_system_of(deep) == tmp_path.stat().st_dev
    (tmp_path / "file").write_text("")
    assert free_bytes(tmp_path / "file" / "below") is not None


@pytest.mark.parametrize("name", ["zero\0inside", "x" * 5000])
def test_an_impossible_name_has_unknown_free_space(name: str, tmp_path: Path) -> None:
    assert free_bytes(tmp_path / name) in (None, free_bytes(tmp_path))
    assert file_system_of(tmp_path / name) in (None, tmp_path.stat().st_dev)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_an_unreadable_folder_has_unknown_free_space(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    assert free_bytes(closed / "below" / "it") is None
    closed.chmod(0o700)
