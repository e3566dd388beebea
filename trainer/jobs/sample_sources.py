"""The models that can be sampled: a base model, and the saves and backups of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from modules.config.codec import load_file
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.config.usage import with_family
from modules.families.kinds.identify import identify
from modules.families.spec import BASE_VARIANT
from modules.formats.repository import index_file
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.jobs.spec import AdapterChoice
from trainer.run_folder.backup import list_backups

_STEP = re.compile(r"-step-(\d+)(?:\.safetensors)?$")


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one image: a base model (empty: the config's), adapters, and a backup whose weights replace it."""

    model: str = ""
    adapters: tuple[AdapterChoice, ...] = ()
    backup: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One image to sample: its place in the grid, its prompt and weights, and the labels of its axes."""

    prompt: SamplePrompt
    weights: Weights
    labels: tuple[str, str] = ("", "")
    column: int = 0
    row: int = 0
    number: int = 0
    missing: tuple[str, ...] = field(default=())


def with_model(config: Config, base_model: str) -> Config:
    """Return a config with another base model, with the family and the variant that its file or folder has.

    A name on the Hugging Face Hub keeps the family and the variant of the config.
    """
    path = from_root(base_model)
    if path.exists():
        kind = identify(path)
        if not kind.is_model:
            raise kind.refusal(f"{path.name} is not a whole model.", "Choose a model file or a diffusers folder.")
        config = with_family(config, kind.family, kind.variant or BASE_VARIANT)
    return config.model_copy(update={"model": config.model.model_copy(update={"base_model": base_model})})


@dataclass(frozen=True, slots=True)
class Save:
    """A saved model of a run: its label (the step, "best", or "last"), and its file or folder.

    `is_adapter` is False for a whole model.
    """

    label: str
    path: Path
    step: int
    is_adapter: bool

    def put_on(self, cell: Cell) -> Cell:
        """Return an image sampled with this save; an adapter comes before the others, in place of other saves."""
        if not self.is_adapter:
            return replace(cell, weights=replace(cell.weights, model=str(self.path), backup=""))
        others = [a for a in cell.weights.adapters if Path(a.path).parent != self.path.parent]
        strength = next((a.strength for a in cell.weights.adapters if a not in others), 1.0)
        adapters = (AdapterChoice(str(self.path), strength), *others)
        return replace(cell, weights=replace(cell.weights, adapters=adapters))


@dataclass(frozen=True, slots=True)
class RunModels:
    """The models of a run: its config, its saves by step, and its backups, the newest first."""

    config: Config
    saves: tuple[Save, ...]
    backups: tuple[Path, ...]


def saves_of(run_dir: Path) -> RunModels:
    """Return the models of a run's folder. Raises DarkroomError if it is not one."""
    config = config_of_run(run_dir)
    if config.training.trains not in ("adapter", "full"):
        raise DarkroomError(
            f"The run {run_dir.name} trains no model that can be sampled by itself.",
            advice="Add its embeddings under Embeddings, or choose the file of its VAE on the Model page.",
        )
    is_adapter = config.training.trains == "adapter"
    folder = run_dir / "save"
    models = [_save(path, is_adapter) for path in folder.iterdir() if _is_model(path)] if folder.is_dir() else []
    saves = tuple(sorted(models, key=lambda save: (save.step < 0, save.step, save.label)))
    return RunModels(config, saves, tuple(info.path for info in list_backups(run_dir)))


def config_of_run(path: Path) -> Config:
    """Return the config of a run's folder or of one of its backups. Raises DarkroomError without one."""
    file = path / "config.json"
    if not file.is_file():
        raise DarkroomError(f"{path} has no config.json.", advice="Choose the folder of a run, or one of its backups.")
    return load_file(file).config


def _is_model(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    return path.suffix == ".safetensors" if path.is_file() else index_file(path) is not None


def _save(path: Path, is_adapter: bool) -> Save:
    match = _STEP.search(path.name)
    if match:
        return Save(str(int(match[1])), path, int(match[1]), is_adapter)
    stem = path.name.removesuffix(".safetensors")
    label = next((end for end in ("best-reward", "best") if stem.endswith(f"-{end}")), stem)
    return Save(label, path, -1, is_adapter)
