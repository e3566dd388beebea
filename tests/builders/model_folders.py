"""Folders laid out as those of other programs, in a home folder with nothing else on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_kinds import model_shapes, write_header


def alone_on_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home folder the only place where programs are searched for; return it."""
    home.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("modules.model_finder.programs._usual_places", lambda: [home])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr("modules.model_finder.programs.user_settings", lambda: home / "settings")
    return home


def checkpoint(path: Path, model: str = "sdxl") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_header(path, model_shapes(model))


def comfyui(root: Path) -> Path:
    for folder in ("checkpoints", "loras", "diffusion_models", "vae"):
        (root / "models" / folder).mkdir(parents=True)
    return root


def webui(root: Path, *, forge: bool = False) -> Path:
    (root / "models/Stable-diffusion").mkdir(parents=True)
    if forge:
        (root / "modules_forge").mkdir()
    return root


def linked(link: Path, target: Path) -> Path:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target, target_is_directory=target.is_dir())
    return link
