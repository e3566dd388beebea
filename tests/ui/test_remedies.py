"""The buttons that fix findings: replacement, family, queue and free space."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from modules.config.codec import save_file
from modules.config.schema import Config
from modules.settings.edit import set_path
from modules.system.errors import DarkroomError
from modules.system.problem import Problem
from tests.ui.conftest import Window
from tests.ui.test_secrets_dialog import click
from tests.unit.preflight.setups import write_model, write_sdxl
from trainer.preflight.devices import problems_of_devices
from trainer.preflight.requirements import problems_of_speed
from trainer.run_folder.backup import list_backups, write_backup
from trainer.run_folder.fork import ForkSource
from trainer.run_folder.run_lock import RunLock
from ui.features.other_family import OtherFamily
from ui.features.queue.model import QueueControl
from ui.features.space import SpaceWindow, delete, find_space
from ui.loop.interaction import ACTIONS_OF_REMEDIES


def test_each_finding_has_its_button(window: Window, tmp_path: Path) -> None:
    """Behind its text, so that it is clear which finding it fixes."""
    context, bar = window.app.context, window.app.shell.findings_bar
    context.form.edit("model.hub_cache_dir", str(tmp_path))
    context.form.edit("model.base_model", "runwayml/stable-diffusion-v1-5")
    window.settle()
    assert set(bar.remedy_buttons) >= {"repository"}
    row = next(n for n, f in enumerate(context.findings.visible) if f.problem.remedy == "repository")
    button = bar.remedy_buttons["repository"]
    assert bar.list.index(button).split(".")[0] == str(row + 1)
    click(button)
    window.settle()
    assert context.form.config.model.base_model == "stable-diffusion-v1-5/stable-diffusion-v1-5"
    assert "repository" not in bar.remedy_buttons


def test_a_model_of_another_family_can_be_trained_as_such(ready: Window, tmp_path: Path) -> None:
    context, model = ready.app.context, write_sdxl(tmp_path / "xl")
    context.form.edit("model.base_model", str(model))
    ready.settle()
    click(ready.app.shell.findings_bar.remedy_buttons["family"])

    def opened() -> OtherFamily | None:
        return next((w for w in ready.app.root.winfo_children() if isinstance(w, OtherFamily)), None)

    ready.wait_until(opened, "the window")
    dialog = opened()
    assert dialog is not None
    ready.wait_until(lambda: dialog.moving.result is not None, "the preset")
    dialog.apply()
    config = context.form.config
    assert (config.model.family.name, config.model.base_model) == ("sdxl", str(model))


def test_the_variant_the_device_and_an_attention_that_works_are_set(ready: Window, tmp_path: Path) -> None:
    context, buttons = ready.app.context, ready.app.shell.findings_bar.remedy_buttons
    context.form.edit("model.base_model", str(write_model(tmp_path / "sd")))
    context.form.edit("model.variant", "inpainting")
    ready.wait_until(lambda: "variant" in buttons, "the variant's button")
    ready.settle()
    click(buttons["variant"])
    ready.wait_until(lambda: context.form.config.model.variant == "text_to_image", "the variant")
    context.form.edit("general.train_device", "nowhere")
    [finding] = problems_of_devices(context.form.config)
    context.actions.run(ACTIONS_OF_REMEDIES[finding.remedy])
    assert context.form.config.general.train_device == "auto"
    context.form.edit("training.attention", "flash")
    [finding] = problems_of_speed(context.form.config)
    context.actions.run(ACTIONS_OF_REMEDIES[finding.remedy])
    assert context.form.config.training.attention == "sdpa"


def test_a_run_beside_another_one_can_be_queued(ready: Window) -> None:
    context = ready.app.context
    warning = Problem("general.workspace_dir", "Another run is training.", "warning", remedy="queue")
    context.findings.show("Before you start", [warning], context.form.config)
    ready.settle()
    click(ready.app.shell.findings_bar.remedy_buttons["queue"])
    control = context.models.of(QueueControl)
    ready.wait_until(lambda: control.queue.items, "the item")
    assert control.queue.items[0].config == context.form.config


def test_a_fork_from_a_backup_is_not_queued_as_a_run_from_step_0(ready: Window, tmp_path: Path) -> None:
    app = ready.app
    backup = write_backup(tmp_path / "run", step=2, epoch=1, now=datetime(2026, 3, 1), write=lambda f: None)
    source = ForkSource(tmp_path / "run", "zog", 2, backup.path, backup)
    app.starter.prepare_fork(source, app.form.config)
    app.context.actions.run("add_to_queue")
    ready.settle()
    control = app.context.models.of(QueueControl)
    assert not control.queue.items
    assert "A fork that continues zog from a backup cannot wait in the queue." in app.context.findings.text
    app.starter.prepare_fork(replace(source, backup=None), app.form.config)  # its weights are in its config
    app.context.actions.run("add_to_queue")
    ready.wait_until(lambda: control.queue.items, "the item")


@pytest.fixture
def full(tmp_path: Path) -> Config:
    """A config whose workspace, cache and downloads hold files."""
    config = Config()
    for path, name in (
        ("general.workspace_dir", "workspace"),
        ("general.cache_dir", "cache"),
        ("model.hub_cache_dir", "hub"),
    ):
        config, _ = set_path(config, path, str(tmp_path / name))
    for step in (10, 20):
        write_backup(
            tmp_path / "workspace" / "runs" / "one", step=step, epoch=1, now=datetime(2026, 1, 1, 0, step),
            write=lambda folder: save_file(config, folder / "config.json"),
        )  # fmt: skip
    key = "aa" + 30 * "0"
    for file in (
        f"cache/latents/aa/{key}.safetensors",
        f"cache/text/shards/{key}.safetensors",
        "cache/masks/aa/x.safetensors",
        f"cache/masks/bb/{key}.safetensors",
        "cache/masks/photo.png",
        "hub/models--owner--model/blobs/b",
        "hub/models--mine/weights.bin",
        "workspace/.trash/old/log.txt",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"x" * 5000)
    return config


def test_what_can_be_deleted_to_free_space(full: Config, tmp_path: Path) -> None:
    places = (tmp_path / "workspace",)
    run_dir = places[0] / "runs" / "one"
    found = find_space(full, places)
    assert found.free.startswith("Free: ")
    names = {item.name.partition(" in ")[0] for item in found.items}
    assert names == {
        "Deleted runs", "1 older backup of one", "Cache of images and captions", "Downloaded model owner/model",
    }  # fmt: skip
    lock = RunLock(run_dir)
    with pytest.raises(DarkroomError, match="A run is training"):
        delete(found.items, places)
    lock.release()
    assert delete(found.items, places) == sum(item.size_bytes for item in found.items)
    assert find_space(full, places).items == ()
    assert [backup.step for backup in list_backups(run_dir)] == [20]
    left = {file.name for file in tmp_path.rglob("*") if file.is_file() and run_dir not in file.parents}
    assert left == {"x.safetensors", f"aa{30 * '0'}.safetensors", "photo.png", "weights.bin"}, "the user's"


def test_space_is_freed_after_a_question(ready: Window, full: Config, tmp_path: Path) -> None:
    context = ready.app.context
    context.form.replace(full)
    ready.settle()
    context.actions.run("space")
    (dialog,) = (w for w in ready.app.root.winfo_children() if isinstance(w, SpaceWindow))
    ready.wait_until(lambda: dialog.items, "the sizes")
    row = next(n for n, item in enumerate(dialog.items) if item.name.startswith("Downloaded"))
    dialog.table.select([row])
    ready.settle()
    ready.asked.answers["choose"] = "cancel"
    click(dialog.delete_button)
    assert (tmp_path / "hub" / "models--owner--model").exists()
    ready.asked.answers["choose"] = "delete"
    click(dialog.delete_button)
    ready.wait_until(lambda: not any(i.name.startswith("Downloaded") for i in dialog.items), "the deletion")
    assert not (tmp_path / "hub" / "models--owner--model").exists()
    dialog.close()
