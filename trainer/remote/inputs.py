"""The files that a run reads, as trees to be sent, and its config with the paths of the other machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from modules.config.codec import decode, encode, pack_lists
from modules.config.schema import Config
from modules.config.usage import method_of
from modules.data.scan import READ_SUFFIXES
from modules.system.paths import PROGRAM_ROOT, from_root
from trainer.preflight.model_files import kind_of
from trainer.preflight.places import inputs_of_config
from trainer.preflight.read_files import files_read_by
from trainer.remote.record import Remote
from trainer.remote.trees import SentFile, Tree, files_below, stat_file

_WEIGHTS = frozenset({".safetensors", ".gguf", ".ckpt", ".pt", ".pth", ".bin", ".onnx", ".msgpack", ".h5"})
_CONCEPTS, _REWARDS = "concepts.", "reward."
_WRITTEN = ("general.workspace_dir", "general.cache_dir", "quantization.cache_dir", "model.hub_cache_dir")
_PROGRAM = ("modules", "trainer", "launcher", "training_presets")
_PROGRAM_FILES = ("pyproject.toml", "constraints.txt", "start-ui.sh")


@dataclass(frozen=True, slots=True)
class Input:
    """A file or folder of this machine that a run reads: its path, the settings that name it, and its files.

    In the tree everything is below `path.name`. `function` is what follows the path of the user's code.
    """

    path: Path
    settings: tuple[str, ...]
    tree: Tree
    function: str = ""


def program_tree() -> Tree:
    """Return the program itself without the window: the other machine trains with the same one."""
    inside = (f for name in _PROGRAM for f in _below(PROGRAM_ROOT / name) if f.path.suffix != ".pyc")
    return Tree((*inside, *(f for name in _PROGRAM_FILES for f in stat_file(PROGRAM_ROOT / name, name))))


def inputs_of(config: Config) -> list[Input]:
    """Return the files and folders that a run of a config reads; a name on the hub is not one of this machine."""
    weights = {file.path for file in files_read_by(config)}
    settings_by_path: dict[str, list[str]] = {}
    for _, setting, text in inputs_of_config(pack_lists(config)):
        if setting not in _WRITTEN and not _is_unused(config, setting):
            settings_by_path.setdefault(text, []).append(setting)
    return [i for text, settings in settings_by_path.items() if (i := _input(text, settings, weights)) is not None]


def config_there(
    config: Config, inputs: Sequence[Input], places: Sequence[str], *, remote: Remote, folder: str, job: str
) -> Config:
    """Return the config of a run on another machine.

    `places` are the folders of the inputs' trees there, `folder` is the folder of everything, and `job` the run's.
    """
    tree = encode(pack_lists(config))
    for one, place in zip(inputs, places, strict=True):
        for setting in one.settings:
            _set(tree, setting, f"{place}/{one.path.name}{f':{one.function}' if one.function else ''}")
    general, several = tree["general"], tree["multi_gpu"]
    general |= {"workspace_dir": f"{job}/workspace", "cache_dir": f"{folder}/cache"}
    tree["quantization"]["cache_dir"] = f"{folder}/quantized" if config.quantization.cache_dir else ""
    tree["model"]["hub_cache_dir"] = remote.hub_cache_dir
    tree["output"]["destination"] = f"{job}/result/{from_root(config.output.destination).name}"
    num_devices = remote.num_devices
    indexes = ",".join(map(str, range(num_devices))) if num_devices > 1 else several["device_indexes"]
    several |= {"enabled": num_devices > 1, "device_indexes": indexes}
    return decode(tree).config


def paths_there(inputs: Sequence[Input], places: Sequence[str]) -> Mapping[str, str]:
    """Return the paths of inputs on the other machine, each with its path on this one."""
    return {f"{place}/{one.path.name}": str(one.path) for one, place in zip(inputs, places, strict=True)}


def _is_unused(config: Config, setting: str) -> bool:
    """Return whether a run does not read the file or folder that a setting names."""
    if setting.startswith(_CONCEPTS):
        return not config.concepts[int(setting.split(".")[1])].enabled
    return setting.startswith(_REWARDS) and not method_of(config).needs_reward_models


def _input(text: str, settings: list[str], weights: set[Path]) -> Input | None:
    path, function = from_root(text), ""
    if kind_of(path) == "" and ".py:" in text:
        before, _, function = text.rpartition(":")
        path = from_root(before)
    match kind_of(path):
        case "file":
            sidecar = path.with_suffix(".yaml")  # of a checkpoint, with its prediction type
            files = {f.name: f for f in (*stat_file(path, path.name), *stat_file(sidecar, sidecar.name))}
            return Input(path, tuple(settings), Tree(tuple(files.values())), function)
        case "folder":
            inside = (f for f in _below(path) if _is_read(f.path, settings[0], weights))
            return Input(path, tuple(settings), Tree(tuple(inside)))
    return None


def _is_read(file: Path, setting: str, weights: set[Path]) -> bool:
    """Return whether a file in a folder is read: of a concept what is found in it, of a model only some weights."""
    if setting.startswith(_CONCEPTS):
        return file.suffix.lower() in READ_SUFFIXES
    is_listed = not setting.startswith(("sampling.", _REWARDS))
    return not is_listed or file in weights or file.suffix.lower() not in _WEIGHTS


def _below(folder: Path) -> Iterator[SentFile]:
    """Yield the files of a folder with their paths from the folder above it."""
    for file in files_below(folder):
        yield SentFile(str(PurePosixPath(folder.name, file.name)), file.path, file.size_bytes, file.mtime_ns)


def _set(tree: Any, setting: str, value: str) -> None:
    *above, last = setting.split(".")
    for key in above:
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    tree[int(last) if isinstance(tree, list) else last] = value
