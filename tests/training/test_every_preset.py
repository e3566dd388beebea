"""Every built-in preset on a tiny model of its family: it passes the check, its dry run and a step.

Only what depends on the user, the card or downloads is replaced: the model, images, sizes, device and reward models.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from modules.config.presets import BUILT_IN_DIR, Preset
from modules.config.schema import Config
from modules.config.usage import learns_from, reads_references
from tests.builders.configs import general_in, laid_over
from tests.builders.flow_models import FLOW_MODELS, VARIANTS, flow_model
from tests.builders.images import draw_folder
from tests.builders.models import write_inpainting_folder
from tests.builders.runs import run
from trainer.commands import Command, Stop
from trainer.events import Event, PhaseChanged, RunFinished, StepFinished
from trainer.preflight import check

pytestmark = pytest.mark.slow

PRESETS = sorted(f for f in BUILT_IN_DIR.glob("*/#*.json") if not f.stem.startswith("#demo"))
_OF_FAMILY: Mapping[str, str] = {flow_model(name).family: name for name in (*FLOW_MODELS, *VARIANTS)}
_EDITING: Mapping[str, str] = {
    "flux": "tiny_flux_kontext", "flux2_klein": "tiny_flux2_edit", "qwen_image": "tiny_qwen_edit"
}  # fmt: skip


def tiny_model_of(config: Config, request: pytest.FixtureRequest, folder: Path) -> Path:
    """Return a tiny model of a preset's family and variant."""
    family, variant = config.family.name, config.model.variant
    name = _EDITING[family] if variant == "edit" else _OF_FAMILY.get(family, f"tiny_{family}")
    if family == "sd" and "2-1" in config.model.base_model:
        name = "tiny_sd2"
    if family == "sdxl" and config.model.family.model_dump()["prediction_type"] == "v_prediction":
        name = "tiny_sdxl_v"
    model: Path = request.getfixturevalue(name)
    return write_inpainting_folder(folder / "inpainting", model) if variant == "inpainting" else model


def concepts_of(config: Config, folder: Path) -> list[dict[str, Any]]:
    """Return concepts with what the preset says that it learns from."""
    for name in ("training/chosen", "training/rejected", "validation"):
        images = draw_folder(folder / name, sizes=[(64, 64)] * 2, captions=["a disc, <embedding>"])
        for image in sorted(images.glob("*.png")) if reads_references(config) else ():
            shutil.copy(image, image.with_name(f"{image.stem}-condlabel.png"))
    (folder / "prompts.txt").write_text("a disc\na square\n", encoding="utf-8")
    concept = {
        "images": {"path": str(folder / "training" / "chosen")},
        "pairs": {"path": str(folder / "training"), "kind": "pairs"},
        "prompts": {"path": str(folder / "prompts.txt"), "kind": "prompts"},
    }[learns_from(config)]
    validation = {"path": str(folder / "validation"), "kind": "validation"}
    return [concept] if config.validation.every.is_never else [concept, validation]


def on_tiny_model(preset: Config, request: pytest.FixtureRequest, folder: Path) -> Config:
    """Return a preset with what is the user's own, and sizes, for a tiny model on a CPU."""
    model = tiny_model_of(preset, request, folder)
    name = _OF_FAMILY.get(preset.family.name)
    tiny = flow_model(name) if name else None
    side_px = tiny.side_px if tiny else 64
    family = {**(tiny.settings if tiny else {}), **dict.fromkeys(tiny.places if tiny else (), str(model))}
    rewards = {"models": [{"kind": "brightness"}]} if preset.reward.models else {}
    rollout = {"steps": 5} if "steps" in type(preset.training.method).model_fields else {}
    held_out = {"held_out_reward": "contrast"} if rewards else {}
    prompt = {"prompt": "a disc", "width_px": side_px, "height_px": side_px, "steps": 2}
    return laid_over(
        preset,
        {
            "general": general_in(folder),
            "model": {"base_model": str(model), "family": family},
            "concepts": concepts_of(preset, folder),
            "data": {"resolution_px": [side_px]},
            "training": {"epochs": 1, "method": {**rollout, **held_out}, "ema": {"update_every_steps": 1}},
            "reward": rewards,
            "sampling": {"every": {"n": 1, "unit": "step"}, "prompts": [prompt]},
            "output": {"destination": str(folder / "out" / "result.safetensors")},
        },
    )


def stop_soon(event: Event, send: Callable[[Command], None]) -> None:
    """Stop the run after its first step, or when it waits for the choices of a person."""
    if isinstance(event, StepFinished) or (isinstance(event, PhaseChanged) and event.phase == "choosing"):
        send(Stop())


@pytest.mark.daily(5)
@pytest.mark.parametrize("file", PRESETS, ids=lambda f: f.stem)
def test_a_preset_passes_its_check_its_dry_run_and_a_step(
    file: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    config = on_tiny_model(Preset(file.stem, file.parent.name, file).load().config, request, tmp_path)
    assert [str(p) for p in check(config).errors] == []
    ran = run(config, on_event=stop_soon)
    assert isinstance(ran.ending, RunFinished), ran.ending
