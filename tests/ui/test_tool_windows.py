"""The windows beside training, in one window: About, keys, the debug bundle, the button of the profile."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ui.conftest import Window
from trainer.commands import ProfileNow
from trainer.events import RunFinished
from ui.features.about import About, BundleWindow, Keys, about_lines, key_rows
from ui.features.checkpoints.model import CheckpointSession
from ui.features.space import SpaceWindow
from ui.loop.background import Job
from ui.loop.run_state import RunState


def test_every_key_is_listed_and_each_window_opens_once(open_window: Callable[..., Window], tmp_path: Path) -> None:
    window = open_window()
    context = window.app.context
    keys = {row.key for row in key_rows(context.actions)}
    assert {a.shortcut for a in context.actions if a.shortcut} <= keys
    assert {fact.label: fact.value for fact in about_lines()}["Licence"] == "Apache-2.0"
    for name, kind in (("keys", Keys), ("about", About), ("bundle", BundleWindow)):
        for _ in range(2):
            context.actions.run(name)
        assert [type(w) for w in context.root.winfo_children() if isinstance(w, kind)] == [kind]
        window.settle()
    [bundle] = [w for w in context.root.winfo_children() if isinstance(w, BundleWindow)]
    window.wait_until(lambda: bundle.files, "the files")
    window.wait_until(lambda: bundle.text.get("1.0", "1.1") == "{", "the first file")
    window.asked.answers["ask_save_file"] = tmp_path / "report"
    said = window.app.shell.bottom_bar.detail
    bundle.save()
    window.wait_until(lambda: "Saved report.zip" in said.cget("text"), "the zip file")
    assert zipfile.ZipFile(tmp_path / "report.zip").namelist()[0] == "config.json"
    context.notify(sentence := "A status that is longer than the bar. " * 9)
    window.settle()
    assert str(said.cget("text")).endswith("…")
    assert (said.hidden_text, said.winfo_reqheight() < 30) == (sentence, True)
    context.session.show_past(RunState(finished=RunFinished("finished", 3, "Finished.")))
    context.notify("Saved.")
    window.settle()
    phase = window.app.shell.bottom_bar.phase
    assert (phase.cget("text"), phase.token) == ("Ready", "text"), "green was the end of the run"
    assert not context.actions["profile"].is_enabled()
    sent: list[object] = []
    context.session.send = sent.append  # type: ignore[method-assign]
    context.actions["profile"].run()
    assert sent == [ProfileNow()]


def test_of_two_looks_only_the_newer_one_counts(
    window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads look, and the older one may be the slower: what was deleted was offered again."""
    context, jobs = window.app.context, list[Job]()
    runs, space = window.open_page("runs"), SpaceWindow(context)
    session = CheckpointSession((tmp_path,), context.pump.background, may_start=lambda: True)
    monkeypatch.setattr(context.pump.background, "_submit", lambda job: jobs.append(job) or job)
    for look in (runs.refresh, space.look, session.refresh):  # type: ignore[attr-defined]
        look()
        older = set(jobs)
        look()
        assert older == {job for job in jobs if job.is_cancelled} < set(jobs)
        jobs.clear()
    space.close()
