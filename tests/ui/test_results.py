"""The results of runs on the page that samples: which are found, and what becomes of the newest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.settings.edit import set_path
from tests.ui.conftest import Window
from tests.unit.test_run_records import started, step, write_run
from trainer.events import ModelSaved
from ui.loop.past_runs import newest_results


def trained(workspace: Path, day: int, file: str, *, trains: str = "adapter", prompt: str = "a zog") -> Path:
    """Write a run that has saved its result; return the result's path."""
    path = workspace / file
    saved = ModelSaved(20, str(path), "kohya", is_final=True)
    name = f"2026-03-{day:02}_12-00-00"
    run_dir = write_run(workspace, name, [(0, started(workspace)), (1, step(20)), (2, saved)])
    config = Config()
    for place, value in (
        ("training.trains", trains),
        ("model.base_model", f"models/{file}.base"),
        ("sampling.prompts", [{"prompt": prompt}]),
    ):
        config, _ = set_path(config, place, value)
    save_file(config, run_dir / "config.json")
    path.write_bytes(b"a model")
    return path


def test_the_newest_results_that_exist_come_first(tmp_path: Path) -> None:
    first, again = trained(tmp_path, 1, "a.safetensors"), trained(tmp_path, 3, "a.safetensors")
    tune, gone = trained(tmp_path, 2, "tune", trains="full"), trained(tmp_path, 4, "gone.safetensors")
    trained(tmp_path, 5, "vae.safetensors", trains="vae")
    write_run(tmp_path, "2026-03-06_12-00-00", [(0, started(tmp_path))])
    gone.unlink()
    found = newest_results((tmp_path, tmp_path))
    assert first == again
    assert [(r.path, r.run_dir.name[8:10], r.kind) for r in found] == [(again, "03", "adapter"), (tune, "02", "full")]
    assert found[0].label == "a.safetensors (2026-03-03 12:00, step 20)"
    assert newest_results((tmp_path,), most=1) == found[:1]


def test_the_newest_result_is_ready_and_a_newer_one_is_offered(window: Window, tmp_path: Path) -> None:
    lora = trained(tmp_path, 1, "zog.safetensors")
    window.app.form.edit("general.workspace_dir", str(tmp_path))
    page: Any = window.open_page("sample")
    card = page.model_card
    window.wait_until(lambda: card.loras.rows, "the LoRA of the last run")
    assert [path for path, _ in card.loras.rows] == [lora]
    value = page.session.form.value
    assert (value("model.base_model"), value("sampling.prompts.0.prompt")) == ("models/zog.safetensors.base", "a zog")
    assert not card.offer.winfo_manager()

    value_before = "my own prompt"
    page.session.form.edit("sampling.prompts.0.prompt", value_before)
    newer = trained(tmp_path, 2, "newer.safetensors", prompt="another")
    window.open_page("run")
    window.open_page("sample")
    window.wait_until(card.offer.winfo_manager, "the offer of the newer one")
    assert "newer.safetensors" in card.offer_text.cget("text")
    card.offer_button.invoke()
    assert [path for path, _ in card.loras.rows] == [newer]
    assert value("sampling.prompts.0.prompt") == value_before
    assert not card.offer.winfo_manager()
    menu = card.run_menu()
    menu.invoke(1)
    assert [path for path, _ in card.loras.rows] == [lora]
    card.loras.remove(0)
    assert card.offer.winfo_manager(), "what was removed is offered again"
