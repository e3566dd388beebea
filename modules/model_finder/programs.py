"""The programs that keep models on this machine: how their folders are recognised, and where the models are in them.

Sources: ComfyUI's extra_model_paths.yaml.example and its documentation of the folders; A1111's wiki; the folders that
Forge and StabilityMatrix create.
"""

from __future__ import annotations

import os
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from modules.config.imports.yaml_text import MAX_BYTES, UnreadableYamlError, read_yaml
from modules.families.kinds.record import ModelType
from modules.system.paths import PROGRAM_ROOT
from modules.system.regular_files import read_json_object, read_regular

BASE_MODELS: tuple[ModelType, ...] = ("checkpoints", "diffusion_models")
"""The sorts among which base models are."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that keeps models.

    `names` are the names of its folder in the usual places. A folder is the program's if it contains all of `marks`.
    `folders` has the folders for each kind of file; a new file belongs in the first one that exists, or else in the
    first. `packages` are folders that contain other programs, `path_files` the YAML files that name more folders.
    `settings` is the file in the user's folder of settings, and the key in it, that names the program's folder.
    """

    name: str
    label: str
    names: tuple[str, ...]
    marks: tuple[str, ...]
    folders: Mapping[ModelType, tuple[str, ...]]
    packages: tuple[str, ...] = ()
    path_files: tuple[str, ...] = ()
    settings: tuple[str, str] = ("", "")


_WEBUI: Mapping[ModelType, tuple[str, ...]] = {
    "checkpoints": ("models/Stable-diffusion",),
    "vae": ("models/VAE",),
    "text_encoders": ("models/text_encoder",),
    "loras": ("models/Lora", "models/LyCORIS"),
    "embeddings": ("embeddings",),
}
COMFYUI = Program(
    "comfyui",
    "ComfyUI",
    names=("ComfyUI", "comfyui", "ComfyUI_windows_portable/ComfyUI", "comfy/ComfyUI"),
    marks=("models/checkpoints", "models/loras"),
    folders={
        "checkpoints": ("models/checkpoints", "models/diffusers"),
        "diffusion_models": ("models/diffusion_models", "models/unet"),
        "vae": ("models/vae",),
        "text_encoders": ("models/text_encoders", "models/clip"),
        "loras": ("models/loras",),
        "embeddings": ("models/embeddings",),
    },
    path_files=("extra_model_paths.yaml", "extra_models_config.yaml"),
    settings=("ComfyUI/config.json", "basePath"),  # of ComfyUI Desktop
)
PROGRAMS: tuple[Program, ...] = (  # in the order of detection: Forge has the folders of A1111, too
    COMFYUI,
    Program(
        "forge",
        "Forge",
        names=("stable-diffusion-webui-forge", "webui_forge_cu121_torch231/webui", "sd-webui-forge-neo", "forge"),
        marks=("models/Stable-diffusion", "modules_forge"),
        folders=_WEBUI,
    ),
    Program(
        "a1111",
        "A1111",
        names=("stable-diffusion-webui", "sd.webui/webui", "automatic1111"),
        marks=("models/Stable-diffusion",),
        folders=_WEBUI,
    ),
    Program(
        "stability_matrix",
        "StabilityMatrix",
        names=("StabilityMatrix", "StabilityMatrix/Data", "StabilityMatrix-win-x64/Data"),
        marks=("Models/StableDiffusion",),
        folders={
            "checkpoints": ("Models/StableDiffusion", "Models/Diffusers"),
            "diffusion_models": ("Models/DiffusionModels", "Models/Unet"),
            "vae": ("Models/VAE",),
            "text_encoders": ("Models/TextEncoders", "Models/CLIP"),
            "loras": ("Models/Lora", "Models/LyCORIS"),
            "embeddings": ("Models/Embeddings", "Models/TextualInversion"),
        },
        packages=("Packages",),
        settings=("StabilityMatrix/library.json", "LibraryPath"),
    ),
)
_TYPES_IN_PATH_FILES: Mapping[str, ModelType] = {
    "checkpoints": "checkpoints",
    "diffusers": "checkpoints",
    "diffusion_models": "diffusion_models",
    "unet": "diffusion_models",
    "vae": "vae",
    "text_encoders": "text_encoders",
    "clip": "text_encoders",
    "loras": "loras",
    "embeddings": "embeddings",
}
_MAX_SETTINGS_BYTES = 1_000_000
_MAX_PACKAGES = 100


@dataclass(frozen=True, slots=True)
class ProgramFolder:
    """The folder of a program."""

    program: Program
    path: Path

    def place_for(self, kind: ModelType) -> Path | None:
        """Return the folder in which a new file of a kind belongs; None if the program has none for it."""
        places = [self.path / name for name in self.program.folders.get(kind, ())]
        return next((place for place in places if place.is_dir()), next(iter(places), None))

    def model_folders(self) -> Iterator[tuple[ModelType, Path]]:
        """Yield the folders of models with the kind of their files; they need not exist.

        Unreadable lists of folders are skipped.
        """
        for kind, names in self.program.folders.items():
            yield from ((kind, self.path / name) for name in names)
        for name in self.program.path_files:
            yield from folders_in(self.path / name)


def program_at(folder: Path) -> ProgramFolder | None:
    """Return the program whose folder this is, or is inside this one, or whose models folder this is; else None."""
    above = [folder.parent] if folder.name.lower() == "models" else []
    inner = (folder / name for program in PROGRAMS for name in program.names)
    for place in (folder, *above, *inner):
        if (program := _program_of(place)) is not None:
            return ProgramFolder(program, place)
    return None


def find_programs(named: Sequence[Path] = (), *, reads_settings: bool = True) -> list[ProgramFolder]:
    """Return the folders of the programs on this machine: those that the user has named first, then the usual places.

    With `reads_settings` also the folders that the programs' settings files name: these are for reading, not for
    writing. A program that is reached in two ways is listed once.
    """
    by_inode: dict[tuple[int, int], ProgramFolder] = {}
    for candidate in _candidates(named, reads_settings=reads_settings):
        identity = identity_of(candidate.path)
        if identity is not None and identity not in by_inode:
            by_inode[identity] = candidate
            for package in _packages_of(candidate):
                inner_identity = identity_of(package.path)
                if inner_identity is not None:
                    by_inode.setdefault(inner_identity, package)
    return list(by_inode.values())


def folders_in(path_file: Path) -> Iterator[tuple[ModelType, Path]]:
    """Yield the folders that a YAML file of ComfyUI names, with the kind of their files; none if it is unreadable."""
    try:
        sections = read_yaml(read_regular(path_file, MAX_BYTES).decode("utf-8"))
    except (OSError, ValueError, UnreadableYamlError):
        return
    for section in sections.values() if isinstance(sections, Mapping) else ():
        if not isinstance(section, Mapping):
            continue
        base = path_file.parent / _expand(str(section.get("base_path") or ""))
        for key, value in section.items():
            kind = _TYPES_IN_PATH_FILES.get(str(key))
            names = value if isinstance(value, list) else str(value or "").splitlines()
            if kind is not None:
                yield from ((kind, base / _expand(str(name).strip())) for name in names if str(name).strip())


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file or folder, equal for all paths to it; None if the path leads nowhere."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _candidates(named: Sequence[Path], *, reads_settings: bool) -> Iterator[ProgramFolder]:
    for folder in named:
        if (found := program_at(folder)) is not None:
            yield found
    for program in PROGRAMS if reads_settings else ():
        file, key = program.settings
        if file and (folder_name := _setting_in(file, key)) and (found := program_at(Path(folder_name))) is not None:
            yield found
    for place in _usual_places():
        for program in PROGRAMS:
            for name in program.names:
                if (owner := _program_of(place / name)) is not None:
                    yield ProgramFolder(owner, place / name)


def _program_of(folder: Path) -> Program | None:
    """Return the first program with all its marks in a folder."""
    return next((p for p in PROGRAMS if all(_is_folder(folder / mark) for mark in p.marks)), None)


def _packages_of(owner: ProgramFolder) -> Iterator[ProgramFolder]:
    """Yield the programs that a program has installed."""
    for name in owner.program.packages:
        try:
            folders = sorted((owner.path / name).iterdir())[:_MAX_PACKAGES]
        except OSError:
            continue
        for folder in folders:
            if (program := _program_of(folder)) is not None:
                yield ProgramFolder(program, folder)


def _usual_places() -> list[Path]:
    home = Path.home()
    places = [home, home / "Documents", home / "Downloads", home / "Desktop", home / "AI", PROGRAM_ROOT.parent]
    if sys.platform == "win32":
        drives = [Path(f"{letter}:/") for letter in string.ascii_uppercase if Path(f"{letter}:/").exists()]
        places += [*drives, *(drive / "AI" for drive in drives)]
    else:
        places += [Path("/opt"), Path("/workspace")]  # of rented machines
    return places


def user_settings() -> Path:
    """Return the folder in which programs keep the user's settings."""
    return platformdirs.user_config_path(roaming=True)


def _setting_in(name: str, key: str) -> str:
    """Return a text in a JSON file of another program in the user's folder of settings; empty if it has none."""
    file = user_settings() / name
    value = (read_json_object(file, _MAX_SETTINGS_BYTES) or {}).get(key)
    return value if isinstance(value, str) else ""


def _expand(name: str) -> Path:
    path = Path(os.path.expandvars(name))
    try:
        return path.expanduser()
    except RuntimeError:  # no user of that name has a home here
        return path


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
