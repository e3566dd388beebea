"""What the window imports, and where customtkinter may be imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BUILD_EVERYTHING = """
import sys
from ui.app.window import App
from ui.app.catalogue import PAGES
app = App()
app.show()
for page in PAGES:
    app.context.navigation.open(page.key)
    while not app.context.pump.is_idle:
        app.context.pump.tick()
        app.root.update()
app.close()
heavy = sorted({"torch", "diffusers", "transformers", "peft", "torchvision"} & set(sys.modules))
print("heavy:", heavy)
"""


def test_the_window_with_all_its_pages_never_loads_the_engine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BUILD_EVERYTHING], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip().endswith("heavy: []"), done.stderr
    assert done.stderr == ""


_OPEN_LATER = """
import sys
import ui.app.window
from ui.app.catalogue import PAGES, view_of
readers = {"modules.config.imports.kohya_settings", "modules.formats.headers", "modules.data.listing"}
runs = {"trainer.events", "trainer.job_events", "trainer.commands", "trainer.launch", "trainer.run_queue.running"}
plots = {"ui.widgets.plot"}
views = {view_of(page).partition(":")[0] for page in PAGES}
print("early:", sorted((readers | runs | plots | views | {"trainer.jobs.spec"}) & set(sys.modules)))
"""


def test_pages_runs_plots_and_the_readers_of_files_are_imported_when_they_are_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OPEN_LATER], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "early: []", done.stderr


_OPEN_FIRST_PAGE = """
import dataclasses, os, sys
from ui.__main__ import main
from ui.loop.background import Background

jobs = []
Background._submit = lambda self, job: jobs.append(job) or job

def report():
    loaded = [name for name in sys.modules if name.partition(".")[0] in ("modules", "trainer", "ui")]
    records = ("modules.families.", "modules.objectives.methods.", "modules.adapters.", "modules.optim.optimizers.")
    classes = {kind for name in loaded for kind in vars(sys.modules[name]).values() if isinstance(kind, type)}
    built = [kind for kind in classes if kind.__module__ in loaded and dataclasses.is_dataclass(kind)]
    print(len(jobs), len(loaded), len(built), *(name for name in loaded if name.startswith(records)), flush=True)
    print(*sorted({later} & set(sys.modules)), flush=True)
    os._exit(0)

main([], on_visible=report)
"""
_NUM_MODULES = 210  # 192 when this was written; it was 302
_NUM_DATACLASSES = 60  # 50 when this was written; it was 101. Each takes half a millisecond
_SHOWN_LATER = {
    "argparse", "modules.config.own_presets", "modules.config.quantized_parts", "modules.data.inputs",
    "modules.diffusion.timesteps.distributions", "modules.diffusion.weightings", "modules.families.attention",
    "modules.families.larger_model", "modules.quantization.registry", "modules.sampling.registry",
    "modules.optim.optimizers.adam", "modules.optim.schedules.usual",
    "ui.app.abandoned_sessions", "ui.loop.run_state",
}  # fmt: skip


def test_the_first_page_needs_the_records_of_one_family_one_method_and_one_adapter(tmp_path: Path) -> None:
    """The window came up a sixth sooner when it no longer imported and built all of them."""
    environment = {**os.environ, **{name: str(tmp_path) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "APPDATA")}}
    done = subprocess.run(
        [sys.executable, "-c", _OPEN_FIRST_PAGE.replace("{later}", repr(_SHOWN_LATER))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    first_line, early = done.stdout.splitlines()
    num_jobs, number, num_dataclasses, *records = first_line.split()
    families = {name for name in records if name.startswith("modules.families.") and name.endswith(".spec")}
    assert families - {"modules.families.spec"} == {"modules.families.sd.spec"}
    methods = {name.rpartition(".")[2] for name in records if "objectives" in name}
    assert methods == {"denoise", "reconstruction"}
    assert not {f"modules.adapters.{name}" for name in ("loha", "lokr", "oft")} & set(records)
    assert int(number) <= _NUM_MODULES
    assert int(num_dataclasses) <= _NUM_DATACLASSES
    assert early == "", "registries are read when the settings that list their records are shown"
    assert num_jobs == "0", "a thread that computes delays every call of Tk"


def test_without_a_display_it_reports_so_in_a_sentence() -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-m", "ui"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Darkroom cannot open its window: ")
    assert "python -m trainer train" in done.stderr
    assert "Traceback" not in done.stderr


@cache
def _nodes(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def _imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in _nodes(file):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_customtkinter_stays_in_the_widgets() -> None:
    """They import it from `ui.widgets.ctk`, which protects the fonts of other windows while it is imported."""
    files = list((ROOT / "ui").rglob("*.py"))
    assert [f.name for f in files if "customtkinter" in _imports(f)] == []
    users = [f for f in files if "from ui.widgets.ctk import" in f.read_text(encoding="utf-8")]
    assert users
    assert all(ROOT / "ui" / "widgets" in f.parents for f in users)


NO_TK = (
    "app/catalogue", "app/offers", "app/session_files", "forms/changes", "forms/documents", "forms/findings",
    "forms/items", "forms/model", "forms/preferences", "forms/records", "forms/setting_pages",
    "forms/values", "loop/background", "loop/diagnostics", "loop/folding", "loop/interaction",
    "loop/jobs", "loop/pump", "loop/run_session", "loop/run_state", "loop/signal", "loop/wording",
    "widgets/actions", "widgets/notices", "widgets/plot_axes", "widgets/plot_model", "widgets/run_figures",
    "widgets/theme", "widgets/thumbnails",
    *(f"features/{path.parent.name}/model" for path in sorted((ROOT / "ui" / "features").glob("*/model.py"))),
)  # fmt: skip


def test_models_do_without_tk() -> None:
    code = f"""
import importlib, sys
for name in {NO_TK}:
    importlib.import_module("ui." + name.replace("/", "."))
    if "tkinter" in sys.modules:
        sys.exit(f"ui.{{name}} imports tkinter")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_widgets_use_colour_tokens_only() -> None:
    for file in (ROOT / "ui").rglob("*.py"):
        if file.name == "theme.py":
            continue
        texts = [n.value for n in _nodes(file) if isinstance(n, ast.Constant)]
        named = [t for t in texts if isinstance(t, str) and len(t) == 7 and t[0] == "#" and t[1:].isalnum()]
        assert named == [], file


def test_only_the_pump_loops() -> None:
    """`after` stands in few places: the pump's loop, tooltips, and `call_later` for single calls."""
    users = set()
    for file in (ROOT / "ui").rglob("*.py"):
        for node in _nodes(file):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "after":
                users.add(file.relative_to(ROOT / "ui").as_posix())
    assert users == {"widgets/tooltip.py", "widgets/panel.py"}


def test_no_thread_but_the_background_ones_is_started_here() -> None:
    users = {
        file.relative_to(ROOT / "ui").as_posix()
        for file in (ROOT / "ui").rglob("*.py")
        if "threading.Thread(" in file.read_text(encoding="utf-8")
    }
    assert users == {"loop/background.py"}


def test_the_focused_widget_is_read_in_one_place() -> None:
    """These tkinter calls raise KeyError if Tk returns a widget that it created itself."""
    unsafe = {"focus_get", "focus_displayof", "focus_lastfor", "winfo_containing", "grab_current", "nametowidget"}
    users = {
        file.relative_to(ROOT / "ui").as_posix()
        for file in (ROOT / "ui").rglob("*.py")
        for node in _nodes(file)
        if isinstance(node, ast.Attribute) and node.attr in unsafe
    }
    assert users == {"widgets/panel.py"}
