"""The config as JSON: shown, copied, pasted, loaded with a report, undone."""

from __future__ import annotations

import json

from modules.config.codec import as_text, load_text
from modules.config.schema import Config
from modules.system.paths import PROGRAM_ROOT
from tests.ui.conftest import Window
from ui.features.config_views.json_window import JsonView


def test_the_text_of_a_config_is_the_whole_of_it() -> None:
    config = Config.model_validate({"training": {"epochs": 7}, "concepts": [{"path": "x"}], "concepts_file": "c.json"})
    text = as_text(config)
    assert json.loads(text)["concepts"][0]["path"] == "x"
    again = load_text(text, name="The text", folder=PROGRAM_ROOT)
    assert again.problems == []
    assert again.config == config.model_copy(update={"concepts_file": ""})


def test_the_window_follows_copies_loads_and_is_undone(window: Window) -> None:
    app = window.app
    view = JsonView(app.context)
    assert view.text.get("1.0", "end-1c") == as_text(app.form.config)
    app.form.edit("training.epochs", 7)
    window.settle()
    assert '"epochs": 7' in view.text.get("1.0", "end")
    view.copy()
    assert app.root.clipboard_get() == as_text(app.form.config)
    app.root.clipboard_clear()
    app.root.clipboard_append(json.dumps({"__version": 11, "training_method": "LORA", "epochs": 5, "what": 1}))
    view.paste()
    app.form.edit("training.epochs", 8)
    window.settle()
    assert "training_method" in view.text.get("1.0", "end")  # what the user pasted stays
    view.load()
    window.settle()
    assert app.form.config.training.epochs == 5
    assert app.form.source.name == "Pasted config"
    assert "what" in app.shell.findings_bar.list.get("1.0", "end")
    app.shell.notice_bar.lines[0].buttons["Undo"].invoke()
    window.settle()
    assert app.form.config.training.epochs == 8
    view.show(as_text(app.form.config))
    view.text.delete("1.0", "3.0")
    before = app.form.document
    view.load()
    window.settle()
    assert app.form.document is before
    assert view.about.cget("text").startswith("The text is not a JSON file")
    second = JsonView(app.context)
    assert not view.winfo_exists()
    assert isinstance(second, JsonView)
    second.close()


def test_what_is_typed_while_a_text_is_read_stays(window: Window) -> None:
    """The loaded config replaced it."""
    app = window.app
    view = JsonView(app.context)
    view.text.delete("1.0", "end")
    view.text.insert("1.0", json.dumps({"darkroom_version": 1, "training": {"epochs": 5}}))
    view.load()
    view.text.insert("end", " and more")  # before the pump brings what was read
    window.settle()
    assert app.form.config.training.epochs == 5
    assert view.text.get("1.0", "end-1c").endswith(" and more")
    assert "without what you have typed since" in view.about.cget("text")
    app.form.edit("training.epochs", 6)
    window.settle()
    assert view.text.get("1.0", "end-1c").endswith(" and more")
    view.close()
