"""Read settings from any supported file, recognized by its content, not by its name.

The readers of other programs' files are imported when such a file is read: the window starts without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.config.codec import LoadedConfig, decode, load_file, load_text
from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT
from modules.system.problem import Problem, quote
from modules.system.regular_files import MAX_JSON_BYTES, is_file, json_object_in, read_regular

CONFIG_SUFFIXES = (".json", ".toml", ".yaml", ".yml", ".safetensors")
_KOHYA_KEYS_NAMES = """
    pretrained_model_name_or_path train_data_dir network_module network_dim LoRA_type max_train_epochs
    max_train_steps train_batch_size lr_scheduler unet_lr optimizer_type datasets mixed_precision
"""
# The time of tomllib grows with the square of the parts of a key, which end in dots.
_MAX_TOML_DOTS, _MAX_TOML_BYTES = 5_000, 4_000_000
_KOHYA_KEYS = frozenset(_KOHYA_KEYS_NAMES.split())
# Programs whose configs are not read, some of which share names with kohya's, by the names that only they have.
_NOT_READ = {"SimpleTuner": {"data_backend_config", "model_family"}, "diffusion-pipe": {"micro_batch_size_per_gpu"}}


def load_any(path: Path, *, over: Config | None = None) -> LoadedConfig:
    """Read settings from a config of ours, of OneTrainer, of kohya (JSON or TOML) or of ai-toolkit (YAML or JSON), or
    from a LoRA file.

    Settings missing from the file come from `over`, or else from the defaults; the files of kohya and ai-toolkit and
    LoRA files ignore `over`. Content never raises; a file without settings gives the defaults and an error without a
    path.
    """
    if path.suffix.lower() == ".safetensors":
        from modules.config.imports.lora_metadata import config_of_lora

        return config_of_lora(path)
    if path.suffix.lower() == ".toml":
        return _load_toml(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _load_yaml(path)
    try:
        raw = json_object_in(read_regular(path, MAX_JSON_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError):  # reported by `load_file`
        raw = None
    return _from_other_program(raw, path) or load_file(path, over=over)


def load_any_text(text: str, *, name: str) -> LoadedConfig:
    """Read settings from text: a config of ours or of another program. Messages call the text `name`."""
    raw = json_object_in(text)
    if raw is None and text.lstrip("- \n").startswith("job:"):
        return _from_yaml(text, name)
    return _from_other_program(raw, PROGRAM_ROOT / name) or load_text(text, name=name, folder=PROGRAM_ROOT)


def is_kohya(raw: dict[str, Any]) -> bool:
    """Return whether a config is kohya's: it has two of kohya's keys and no version key of another program."""
    return not {"darkroom_version", "__version"} & raw.keys() and len(_KOHYA_KEYS & raw.keys()) >= 2


def _from_other_program(raw: dict[str, Any] | None, path: Path) -> LoadedConfig | None:
    """Read a config of kohya or of ai-toolkit; None for any other. Configs of other known programs are an error."""
    if raw is None:
        return None
    if refused := _refused(raw, path.name):
        return refused
    if is_kohya(raw):
        return _from_kohya(raw, path)
    return _from_ai_toolkit(raw, path.name) if "job" in raw else None


def _refused(raw: dict[str, Any], name: str) -> LoadedConfig | None:
    """Return the error for a config of a program whose configs are not read; None for any other."""
    keys = {key.lstrip("-") for key in raw}  # SimpleTuner's names may be those of the command line
    program = next((program for program, names in _NOT_READ.items() if names & keys), None)
    if program is None:
        return None
    message = f"{name} is a config of {program}, which is not imported."
    advice = "Choose a preset of its model here, and set what you changed by hand."
    return LoadedConfig(Config(), [Problem("", message, advice=advice)])


def _from_ai_toolkit(raw: dict[str, Any], name: str) -> LoadedConfig | None:
    from modules.config.imports.ai_toolkit import is_ai_toolkit, refusal_of, tree_of_ai_toolkit

    if not is_ai_toolkit(raw):
        return None
    if refused := refusal_of(raw, name):
        return LoadedConfig(Config(), [refused])
    notes = [Problem("", f"{name} is a config of ai-toolkit; settings with a counterpart here were converted.", "info")]
    loaded = decode(tree_of_ai_toolkit(raw, notes))
    return LoadedConfig(loaded.config, [*notes, *loaded.problems], was_migrated=True)


def _load_yaml(path: Path) -> LoadedConfig:
    from modules.config.imports.yaml_text import MAX_BYTES

    try:
        return _from_yaml(read_regular(path, MAX_BYTES).decode("utf-8-sig"), str(path))
    except OSError as error:
        return LoadedConfig(Config(), [Problem("", f"{path} cannot be read: {error.strerror or error}.")])
    except UnicodeDecodeError:
        return LoadedConfig(Config(), [Problem("", f"{path} is not a YAML file: it is not valid UTF-8.")])


def _from_yaml(text: str, name: str) -> LoadedConfig:
    from modules.config.imports.yaml_text import UnreadableYamlError, read_yaml

    try:
        raw = read_yaml(text)
    except UnreadableYamlError as error:
        return LoadedConfig(Config(), [Problem("", f"{name} {error}.")])
    loaded = _from_ai_toolkit(raw, Path(name).name) if isinstance(raw, dict) and "job" in raw else None
    if loaded is None:
        return LoadedConfig(
            Config(), [Problem("", f"{name} contains no known settings: it is not a config of ai-toolkit.")]
        )
    return loaded


def _load_toml(path: Path) -> LoadedConfig:
    raw = _toml_in(path)
    if isinstance(raw, LoadedConfig):
        return raw
    if refused := _refused(raw, path.name):
        return refused
    flat = _without_sections(raw)
    if "datasets" not in flat and not is_kohya(flat):
        return LoadedConfig(Config(), [Problem("", f"{path} contains no known kohya settings.")])
    return _from_kohya(flat, path)


def _toml_in(path: Path) -> dict[str, Any] | LoadedConfig:
    """Return the content of a TOML file, or the error for one that cannot be read."""
    import tomllib

    from modules.config.imports.yaml_text import describe_toml_error

    text = ""
    try:
        text = read_regular(path, _MAX_TOML_BYTES).decode("utf-8-sig")
        if text.count(".") > _MAX_TOML_DOTS:
            return LoadedConfig(
                Config(), [Problem("", f"{path} was not read: it has more than {_MAX_TOML_DOTS:,} dots.")]
            )
        return tomllib.loads(text)
    except OSError as error:
        return LoadedConfig(Config(), [Problem("", f"{path} cannot be read: {error.strerror or error}.")])
    except UnicodeDecodeError:
        return LoadedConfig(Config(), [Problem("", f"{path} is not a TOML file: it is not valid UTF-8.")])
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        return LoadedConfig(
            Config(), [Problem("", f"{path} is not a TOML file: {describe_toml_error(text, str(error))}.")]
        )


def _without_sections(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a TOML tree without its sections, which have no meaning in sd-scripts' configs."""
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and key != "general":
            flat.update(value)
        else:
            flat[key] = value
    if "datasets" not in flat and isinstance(general := flat.get("general"), dict):
        flat = {**flat, **general}
        del flat["general"]
    return flat


def _from_kohya(raw: dict[str, Any], path: Path) -> LoadedConfig:
    from modules.config.imports.kohya_settings import tree_of_kohya

    message = f"{path.name} is a kohya config; settings with a counterpart here were converted."
    notes = [Problem("", message, "info")]
    loaded = decode(tree_of_kohya(_with_datasets(raw, path, notes), notes))
    return LoadedConfig(loaded.config, [*notes, *loaded.problems], was_migrated=True)


def _with_datasets(raw: dict[str, Any], path: Path, notes: list[Problem]) -> dict[str, Any]:
    """Return kohya's settings with the datasets of the TOML or JSON file that they name, if they name one.

    Relative paths count from the folder of the settings, where the file is also looked for if it has moved with them.
    """
    named = raw.get("dataset_config")
    if not isinstance(named, str) or not named.strip() or "datasets" in raw:
        return raw
    places = (path.parent / named, path.parent / Path(named.replace("\\", "/")).name)
    file = next(filter(is_file, places), None)
    tree = None if file is None else _json_in(file) if file.suffix.lower() == ".json" else _toml_in(file)
    if not isinstance(tree, dict) or not isinstance(tree.get("datasets"), list):
        reason = "contains no datasets" if isinstance(tree, dict) else "cannot be read" if file else "was not found"
        advice = f"Put it next to {path.name}, or add the folders on the Concepts page."
        notes.append(Problem("concepts", f"The dataset config {quote(named)} {reason}.", "warning", advice))
        return raw
    notes.append(Problem("concepts", f"The images were read from {file}.", "info"))
    rest = {key: value for key, value in raw.items() if key != "dataset_config"}
    return rest | {key: tree[key] for key in ("general", "datasets") if key in tree}


def _json_in(path: Path) -> dict[str, Any] | None:
    try:
        return json_object_in(read_regular(path, _MAX_TOML_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError):
        return None
