"""The window's side of the program starts without torch, and quickly for that reason."""

from __future__ import annotations

import subprocess
import sys

from modules.system.paths import PROGRAM_ROOT

HEAVY = ("torch", "diffusers", "transformers", "peft", "accelerate", "tensorboard", "scipy")
WINDOW_SIDE = (
    "modules.config.presets",
    "modules.config.rules",
    "modules.data.dataset",
    "modules.data.batch",
    "modules.data.transforms.apply",
    "modules.families.registry",
    "modules.families.parts.clip_tokens",
    "modules.sampling.registry",
    "trainer.preflight.checks",
    "trainer.events",
    "trainer.event_lines",
    "trainer.commands",
    "trainer.launch",
    "trainer.run_folder.backup",
    "trainer.step.counters",
    "trainer.cli.console",
    "trainer.jobs.registry",
    "trainer.jobs.files",
    "trainer.jobs.sample",
    "trainer.jobs.sample_grid",
    "trainer.jobs.caption",
    "trainer.jobs.mask",
    "trainer.jobs.inspect",
    "trainer.__main__",
    "ui.features.captions.opening",
)
CHECKS_ALONE_NEED = ("numpy", "tokenizers", "huggingface_hub", "modules.memory", "trainer.preflight.checks")


def test_none_of_it_needs_torch() -> None:
    """One process imports them in turn: the first that is heavy is the one to look at."""
    code = (
        "import importlib, sys\n"
        f"for module in {WINDOW_SIDE!r}:\n"
        "    importlib.import_module(module)\n"
        f"    heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "    assert not heavy, f'{module} needs {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_window_is_drawn_without_what_a_check_needs() -> None:
    """It takes a third of the start, and the first check comes in the background, when the window is there."""
    code = f"import sys, ui.app.window; print(*[m for m in {HEAVY + CHECKS_ALONE_NEED!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_help_and_check_need_no_torch() -> None:
    for arguments in (["--help"], ["train", "--help"], ["check", "no-such-preset"]):
        code = (
            "import sys, runpy, contextlib\n"
            f"sys.argv = ['trainer', *{arguments!r}]\n"
            "with contextlib.suppress(SystemExit):\n"
            "    runpy.run_module('trainer', run_name='__main__')\n"
            "print('heavy:', *[m for m in ('torch', 'transformers') if m in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=PROGRAM_ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "heavy:"


def test_settings_are_declared_with_types_and_not_with_strings() -> None:
    """Strings, which `from __future__ import annotations` makes of them, are compiled at each start: a twelfth of it.

    Two modules keep strings: only type checkers import the types that their functions use.
    """
    code = (
        "import modules.config.schema\n"
        "from modules.settings.field import Section\n"
        "kinds = Section.__subclasses__()\n"
        "for kind in kinds:\n"
        "    kinds += kind.__subclasses__()\n"
        "print(*{k.__module__ for k in kinds if any(isinstance(a, str) for a in k.__annotations__.values())})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROGRAM_ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"modules.objectives.losses", "modules.adapters.lora"}
