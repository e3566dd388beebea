"""The window that installs packages which a choice needs: progress, pip's log, and Stop."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from trainer.child.process import Spawn, spawn_trainer
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import validate_settings
from ui.forms.context import Context
from ui.loop.jobs import JobRunner
from ui.widgets.controls import Button
from ui.widgets.dialog import Window
from ui.widgets.log import JobLines
from ui.widgets.panel import WrappedText
from ui.widgets.progress import ThinBar
from ui.widgets.theme import GAP, PAD


class InstallWindow(Window):
    """Installs at once, in a process of its own; closing the window stops it. `done()` is called once it has ended."""

    def __init__(
        self,
        context: Context,
        packages: Sequence[str],
        done: Callable[[], object],
        *,
        spawn: Spawn,
    ) -> None:
        super().__init__(context.root, context.theme, f"Install {', '.join(packages)}")
        self._context, self.packages = context, tuple(packages)
        self._waiting = [done]
        self._is_installed = False
        self.runner = JobRunner(spawn=spawn)
        theme, pad = context.theme, context.theme.px(PAD)
        about = (
            f"Installs {' and '.join(packages)} where Darkroom's own packages are, in the version that it was tested "
            "with. Stop removes what is not complete."
        )
        WrappedText(self, theme, about, colour="muted").pack(fill="x", padx=pad, pady=(pad, 0))
        footer = self.add_footer()
        self.stop_button = Button(footer, theme, "Stop", self.runner.stop, width=92)
        self.stop_button.pack(side="right", padx=(0, GAP))
        self.again_button = Button(footer, theme, "Try again", self.start, width=110)
        self.bar = ThinBar(self, theme, on="window")
        self.bar.pack(fill="x", padx=pad, pady=(pad, 0))
        self.status = WrappedText(self, theme, colour="label")
        self.status.pack(fill="x", padx=pad, pady=theme.px(8))
        self.log = JobLines(self, theme, height=8, wrap="char")
        self.log.pack(fill="both", expand=True, padx=pad)
        self.redraw_after(context.pump, self._show, self.runner.changed)
        self.drain(context.pump, self.runner.drain)
        self.at_close(self.runner.stop, self.runner.close)
        self.start()
        self.appear(680, 400)

    def start(self) -> None:
        """Begin the installation, or begin it again."""
        job = JOBS["install"]
        self.runner.start(job, validate_settings(job.settings, {"packages": self.packages}))
        self._show()

    def also_call(self, done: Callable[[], object]) -> None:
        """Also call this function once the installation has ended."""
        self._waiting.append(done)

    def destroy(self) -> None:
        """Also stop the installation."""
        super().destroy()
        if not self._is_installed:
            self._finish()

    def _finish(self) -> None:
        importlib.invalidate_caches()  # so that this process finds what was installed
        for done in self._waiting:
            done()

    def _show(self) -> None:
        state = self.runner.state
        self.bar.set(state.share)
        self.status.recolour("error" if state.failure is not None else "label")
        self.status.set_text(state.status)
        self.log.show(state.lines)
        self.stop_button.set_enabled(state.stage == "running")
        if state.stage in ("failed", "stopped"):
            self.again_button.pack(side="right", padx=(0, GAP))
        else:
            self.again_button.pack_forget()
        if state.stage == "finished" and not self._is_installed:
            self._is_installed = True
            self._finish()


def open_install(
    context: Context, packages: Sequence[str], done: Callable[[], object], *, spawn: Spawn = spawn_trainer
) -> InstallWindow:
    """Open the window and install; one that installs already is brought to the front instead of begun again."""
    for old in [w for w in context.root.winfo_children() if isinstance(w, InstallWindow)]:
        if old.runner.state.is_active:
            old.also_call(done)
            old.lift()
            if set(packages) - set(old.packages):
                context.notify(f"Install {' and '.join(packages)} once this installation has ended.")
            return old
        old.close()
    return InstallWindow(context, packages, done, spawn=spawn)
