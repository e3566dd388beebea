"""The window of automatic captions: the captioner that it proposes, and its messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from launcher import requirements
from launcher.environment import Environment
from modules.annotators import registry
from modules.annotators.registry import CAPTIONERS, captioner_for
from modules.data.concept import Concept
from modules.system.factories import Package
from modules.system.paths import PROGRAM_ROOT
from tests.builders.wheels import write_wheel
from tests.ui.conftest import Window
from tests.ui.fake_child import Spawner
from trainer.job_events import JobFinished, JobLines, JobProgress, JobStopped
from ui.features.captions.annotate_window import AnnotateWindow
from ui.features.captions.image_set import Source
from ui.features.captions.opening import open_automatic_captions
from ui.features.packages import InstallWindow, open_install
from ui.loop.interaction import Failure
from ui.loop.jobs import JobState

TAGGER = "wd_vit_v3"


def opened(window: Window, folder: Path) -> AnnotateWindow:
    context = window.app.context
    return AnnotateWindow(context.root, context, Source(folder, "images"), is_for_masks=False)


def test_one_for_photographs_is_proposed_and_then_the_last_choice(
    window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tagger for anime was proposed for photos, with a red line about its package that stayed."""
    monkeypatch.setattr(Package, "is_installed", property(lambda package: package.name != registry.ONNX.name))
    captions = opened(window, tmp_path)
    assert captions.spec == captioner_for(are_drawn=False)
    assert not captions.spec.is_for_drawings
    captions.form.set("model", TAGGER)
    captions.start()
    assert "onnxruntime" in captions.status.cget("text")
    captions.form.set("model", "blip_base")
    assert captions.status.cget("text") == ""
    failure = Failure("Failed", "It could not be downloaded.", remedy="tokens")
    captions.runner.state = JobState(stage="failed", message=failure.message, failure=failure)
    captions._show()
    assert captions.remedy.button is not None
    assert captions.remedy.button.cget("text") == "Enter a token…"
    captions.form.set("model", "blip_large")
    assert captions.remedy.button is None
    assert not captions.missing.winfo_manager()
    monkeypatch.setattr(Package, "is_installed", property(lambda _package: True))
    window.asked.answers["choose"] = None
    captions.form.set("model", TAGGER)
    captions.start()
    captions.close()
    again = opened(window, tmp_path)
    assert again.spec == CAPTIONERS[TAGGER]
    again.close()


def test_a_missing_package_is_installed_by_one_button(
    window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"onnxruntime"}
    monkeypatch.setattr(Package, "is_installed", property(lambda package: package.name not in missing))
    spawn = Spawner()
    monkeypatch.setattr("ui.features.packages.open_install", partial(open_install, spawn=spawn))
    captions = opened(window, tmp_path)
    captions.form.set("model", TAGGER)
    window.settle()
    captions.install_button.invoke()
    (install,) = (w for w in window.app.root.winfo_children() if isinstance(w, InstallWindow))
    window.settle()
    captions.install_button.invoke()  # it began the installation again
    assert [w for w in window.app.root.winfo_children() if isinstance(w, InstallWindow)] == [install]
    assert len(spawn.children) == 1
    assert install.stop_button.cget("state") == "normal"
    spawn.last.report(
        JobLines(("Collecting onnxruntime",)), JobProgress("downloading package 1: onnxruntime", 0, 1, share=0.25)
    )
    window.wait_until(lambda: install.status.cget("text").startswith("Downloading"), "the progress")
    assert install.log.get("1.0", "end").strip() == "Collecting onnxruntime"
    assert install.bar.share == 0.25
    install.stop_button.invoke()
    assert json.loads(spawn.last.sent[-1]) == {"command": "Stop"}
    spawn.last.report(JobStopped("Stopped."))
    spawn.last.end(130)
    window.wait_until(install.again_button.winfo_manager, "the end")
    assert captions.missing.winfo_manager()
    install.again_button.invoke()
    missing.clear()
    spawn.last.report(JobFinished("Installed onnxruntime."))
    spawn.last.end()
    window.wait_until(lambda: not captions.missing.winfo_manager(), "the installed package")
    assert install.status.cget("text") == "Installed onnxruntime."
    install.close()
    assert captions.status.cget("text") == "Installed onnxruntime. Now press Start."
    captions.close()


@pytest.mark.skipif(find_spec("onnxruntime") is not None, reason="onnxruntime is installed here")
def test_the_button_installs_from_a_folder_of_wheels(
    window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real launcher and the real pip, into an environment that shares the packages of this one."""
    prefix, wheels = tmp_path / "environment", tmp_path / "wheels"
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", prefix], check=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(prefix), "platbase": str(prefix)}))
    (site / "shared.pth").write_text(sysconfig.get_path("purelib"))
    wheels.mkdir()
    version = requirements.tested_versions(PROGRAM_ROOT)["onnxruntime"]
    write_wheel(wheels, "onnxruntime", version, requires=("numpy>=1.21",))
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(wheels), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(sys, "executable", str(Environment("venv", prefix).python))
    monkeypatch.syspath_prepend(site)
    captions = opened(window, tmp_path)
    captions.form.set("model", TAGGER)
    window.settle()
    captions.install_button.invoke()
    (install,) = (w for w in window.app.root.winfo_children() if isinstance(w, InstallWindow))
    seen = set[str]()

    def has_ended() -> bool:
        seen.add(install.status.cget("text"))
        return not install.runner.state.is_active

    window.wait_until(has_ended, "the installation")
    assert install.runner.state.message == "Installed onnxruntime.", install.runner.state
    window.wait_until(lambda: "Now press Start" in captions.status.cget("text"), "the sentence")
    assert not captions.missing.winfo_manager()
    assert (site / "onnxruntime.py").is_file()
    assert any("onnxruntime" in text and not text.startswith("Installed") for text in seen), seen
    assert f"Successfully installed onnxruntime-{version}" in install.log.get("1.0", "end")
    window.asked.answers["choose"] = None
    captions.start()  # which asks before it downloads the model
    window.wait_until(lambda: window.asked.asked("choose"), "the question")
    install.close()
    captions.close()


def test_a_tagger_is_proposed_for_drawings_only(window: Window, tmp_path: Path) -> None:
    flat = Image.new("RGB", (256, 256), "navy")
    for place, colour in enumerate(("gold", "crimson", "white")):
        flat.paste(colour, (20 + 70 * place, 40, 70 + 70 * place, 200))
    flat.save(tmp_path / "drawn.png")
    captions = opened(window, tmp_path)
    window.wait_until(lambda: captions.spec.is_for_drawings)
    captions.close()


def test_the_window_is_for_the_concept_that_it_was_opened_for_last(window: Window, tmp_path: Path) -> None:
    """It stayed at the first concept, and would have written that one's captions again."""
    context = window.app.context
    first = open_automatic_captions(context, Concept(path=str(tmp_path / "one")))
    assert first is open_automatic_captions(context)
    second = open_automatic_captions(context, Concept(path=str(tmp_path / "two")))
    assert second is not None
    assert second.source.folder == tmp_path / "two"
    assert first is not None
    assert not first.winfo_exists()
    second.close()
