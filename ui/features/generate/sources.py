"""The sources of the Generate page's model: the config, the demo, a run and its results, and dropped files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from modules.config.presets import DEMO, list_presets
from modules.families.kinds.identify import identify
from trainer.jobs.sample_sources import RunModels, saves_of
from ui.features.generate.cards import ModelCard
from ui.features.generate.model import SampleSession
from ui.forms.context import Context
from ui.loop.past_runs import Result, newest_results


class SampleSources:
    """Sets the model of the session and of its card; `card()` returns the complete card."""

    def __init__(self, context: Context, session: SampleSession, card: Callable[[], ModelCard]) -> None:
        self._context, self._session, self._card = context, session, card
        self._takes_newest = not session.was_restored  # at the first look

    def drop(self, paths: Sequence[Path]) -> None:
        """Use dropped files: models, LoRAs, embeddings, runs."""
        background = self._context.pump.background
        background.run(lambda: [(path, identify(path).kind) for path in paths], self._place)

    def use_config(self) -> None:
        """Use the model of the config that is being edited."""
        self._session.use_config(self._context.form.config)
        self._card().refresh()

    def use_demo(self) -> None:
        """Use the demo model, which needs no download, with one of its prompts."""
        demo = next(preset for preset in list_presets() if preset.name == DEMO)
        general = self._session.form.config.general
        config = demo.load().config
        self._session.use_config(config.model_copy(update={"general": general}), with_prompt=True)
        self._card().refresh()

    def use_result(self, result: Result, *, with_prompt: bool = False) -> None:
        """Use the result of a run with its base model, and with `with_prompt` also its first prompt."""
        self._session.use_config(result.config, with_prompt=with_prompt)
        self._session.choose(run=str(result.run_dir), backup="")
        if result.kind == "full":
            self._session.form.edit("model.base_model", str(result.path))
        self._card().loras.set([(str(result.path), "1")] if result.kind == "adapter" else ())
        self._card().embeddings.set([(str(result.path), "1")] if result.kind == "embedding" else ())
        self._card().refresh()

    def use_run(self, folder: Path) -> None:
        """Use the model of a run or of one of its backups, read in the background."""
        is_backup = folder.parent.name == "backup"
        run_dir = folder.parent.parent if is_backup else folder
        backup = str(folder) if is_backup else ""
        run = self._context.pump.background.run
        run(lambda: saves_of(run_dir), lambda models: self._show_run(run_dir, backup, models), self._report_failure)

    def _show_run(self, run_dir: Path, backup: str, models: RunModels) -> None:
        self._session.use_config(models.config)
        self._session.choose(run=str(run_dir), backup=backup)
        last = next((save for save in reversed(models.saves) if save.step >= 0), next(iter(models.saves), None))
        if last is not None and not backup:
            if last.is_adapter:
                self._card().loras.set([(str(last.path), "1")])
            else:
                self._session.form.edit("model.base_model", str(last.path))
        if backup:
            self._card().loras.set(())
        self._card().show_run(models)

    def look(self) -> None:
        """Offer the results of runs; the newest is used if nothing has been chosen yet."""

        def offer(results: tuple[Result, ...]) -> None:
            card = self._card()
            is_untouched = not (card.loras.rows or self._session.choices.run or self._session.images)
            if results and self._takes_newest and is_untouched:
                self.use_result(results[0], with_prompt=True)
            self._takes_newest = False
            card.show_results(results)

        places = self._context.workspaces()
        self._context.pump.background.run(lambda: newest_results(places), offer)

    def _report_failure(self, error: Exception) -> None:
        self._context.notify(str(getattr(error, "message", error)))

    def _place(self, kinds: Sequence[tuple[Path, str]]) -> None:
        for path, kind in kinds:
            if kind == "lora":
                self._card().loras.add([path])
            elif kind == "embedding":
                self._card().embeddings.add([path])
            elif (path / "config.json").is_file() and kind not in ("diffusers_folder", "checkpoint"):
                self.use_run(path)
            elif kind in ("diffusers_folder", "checkpoint"):
                self._session.form.edit("model.base_model", str(path))
            elif not self.use_settings(path):
                self._context.notify(f"{path.name} is not a model, a LoRA, an embedding, a run or a sample.")

    def use_settings(self, path: Path) -> bool:
        """Use the settings of a sample; return whether it has any."""
        has_any = self._session.use_settings_of(path)
        if has_any:
            self._context.notify("The settings of the image are taken.")
        return has_any
