"""Opening and saving configs and presets. No Tk: what must be asked goes through `Interaction`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from modules.config.codec import Loaded, load_file, save_file
from modules.config.presets import Preset, list_presets, save_preset
from modules.config.schema import Config
from modules.errors import DarkroomError
from modules.system.paths import PROGRAM_ROOT, safe_name
from ui.findings import Findings
from ui.forms.model import FormModel, Source
from ui.interaction import Answer, Failure, FileKind, Interaction
from ui.preferences import Preferences

CONFIG_KINDS: tuple[FileKind, ...] = (("Config", "*.json"),)
FIRST_PRESET = "#demo"
Say = Callable[[str], None]


class Documents:
    """The commands of the top bar: presets, load, save, save as."""

    def __init__(
        self, form: FormModel, interaction: Interaction, findings: Findings, preferences: Preferences, say: Say
    ) -> None:
        self._form = form
        self._interaction = interaction
        self._findings = findings
        self._preferences = preferences
        self._say = say

    def presets(self) -> list[Preset]:
        """Return the presets there are now."""
        return list_presets()

    def open_preset(self, preset: Preset) -> None:
        """Load a preset. Concepts and samples that are the user's own outlive a preset that brings none."""
        loaded = preset.load()
        kept = self._own_lists(loaded.config)
        config = loaded.config.model_copy(update={name: value for name, value in kept.items() if name != "prompts"})
        if "prompts" in kept:
            sampling = config.sampling.model_copy(update={"prompts": kept["prompts"]})
            config = config.model_copy(update={"sampling": sampling})
        source = Source(preset.name, preset.path, "built_in" if preset.is_built_in else "preset")
        self._take(Loaded(config, loaded.problems, loaded.was_migrated), source)
        self._say(f"Loaded {preset.name}; your {_listed(kept)} stay." if kept else f"Loaded {preset.name}.")

    def open_file(self, path: Path | None = None) -> None:
        """Load a config file: the given one, or one that the user is asked for."""
        path = path or self._interaction.ask_file("Load a config", self._preferences.last_folder, CONFIG_KINDS)
        if path is None:
            return
        loaded = load_file(path)
        if any(p.severity == "error" and not p.path for p in loaded.problems):
            self._findings.show(f"{path.name} could not be loaded", loaded.problems, self._form.config)
            return
        self._take(loaded, Source(path.stem, path, "file"))
        self._preferences.note_file(path)
        self._say(f"Loaded {path.name}.")

    def save(self) -> None:
        """Save to where the config came from; a built-in preset or nothing leads to "save as"."""
        source = self._form.source
        if source.path is None or source.kind in ("built_in", "none"):
            self.save_as_file()
        else:
            self._write(source)

    def save_as_file(self) -> None:
        """Save to a file that the user names."""
        source = self._form.source
        stem = safe_name(source.name.lstrip("#"))
        folder = source.path.parent if source.path and source.kind == "file" else self._preferences.last_folder
        path = self._interaction.ask_save_file("Save the config", folder / f"{stem}.json", CONFIG_KINDS)
        if path is not None:
            path = path if path.suffix else path.with_suffix(".json")
            self._write(Source(path.stem, path, "file"))

    def save_as_preset(self) -> None:
        """Save as a preset of the user's own, under a name that is asked for."""
        proposed = self._form.source.name.lstrip("#")
        name = self._interaction.ask_text("Save as a preset", "The name of the preset", proposed)
        if name is None or not self._may_replace(name):
            return
        try:
            preset = save_preset(self._form.config, name)
        except (DarkroomError, OSError) as error:
            self._tell("The preset could not be saved", error)
            return
        self._form.mark_saved(Source(preset.name, preset.path, "preset"))
        self._say(f"Saved the preset {preset.name}.")

    def _may_replace(self, name: str) -> bool:
        taken = next((p for p in list_presets() if not p.is_built_in and p.name == safe_name(name.lstrip("# "))), None)
        if taken is None or taken.path == self._form.source.path:
            return True
        answers = (Answer("replace", "Replace it"), Answer("cancel", "Cancel", is_default=True))
        question = f"There is a preset {taken.name} already."
        return self._interaction.choose("Replace the preset?", question, answers) == "replace"

    def _write(self, source: Source) -> None:
        assert source.path is not None
        try:
            save_file(self._form.config, source.path)
        except OSError as error:
            self._tell(f"{source.path.name} could not be saved", error)
            return
        self._form.mark_saved(source)
        if source.kind == "file":
            self._preferences.note_file(source.path)
        self._say(f"Saved {source.path.name}.")

    def _take(self, loaded: Loaded, source: Source) -> None:
        self._form.load(loaded.config, source)
        self._findings.show(f"Loaded {source.name}, with notes", loaded.problems, self._form.config)

    def _own_lists(self, incoming: Config) -> dict[str, tuple[object, ...]]:
        """Return the concepts and the sample prompts that a preset without any must not take away."""
        now, was = self._form.config, self._form.baseline
        is_from_built_in = self._form.source.kind == "built_in"
        kept: dict[str, tuple[object, ...]] = {}
        if now.concepts and not incoming.concepts and not (is_from_built_in and now.concepts == was.concepts):
            kept["concepts"] = now.concepts
        prompts, old_prompts = now.sampling.prompts, was.sampling.prompts
        if prompts and not incoming.sampling.prompts and not (is_from_built_in and prompts == old_prompts):
            kept["prompts"] = prompts
        return kept

    def _tell(self, title: str, error: Exception) -> None:
        advice = error.advice if isinstance(error, DarkroomError) else "Choose another place."
        message = error.message if isinstance(error, DarkroomError) else str(error)
        self._interaction.show_failure(Failure(title, message, advice))


def first_form() -> FormModel:
    """Return the form that a first start opens with: the demo preset where it ships, else the defaults."""
    preset = next((p for p in list_presets() if p.name == FIRST_PRESET), None)
    if preset is None:
        return FormModel()
    return FormModel(preset.load().config, source=Source(preset.name, preset.path, "built_in"))


def as_config_path(path: Path) -> str:
    """Return a chosen path as a config holds it: relative where it lies in the program's folder, else absolute."""
    absolute = path.absolute()
    if absolute.is_relative_to(PROGRAM_ROOT) and absolute != PROGRAM_ROOT:
        return absolute.relative_to(PROGRAM_ROOT).as_posix()
    return str(absolute)


def _listed(kept: dict[str, tuple[object, ...]]) -> str:
    words = {"concepts": "concepts", "prompts": "sample prompts"}
    return " and ".join(words[name] for name in kept)
