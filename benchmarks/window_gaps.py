"""The training process of `benchmarks.window`: the real window, a heartbeat, a whole run and a stopped one."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.window import summarise
from trainer.events import RunFailed
from ui.app.window import App
from ui.loop.pump import keep_interpreter_smooth

BEAT_MS = 10
_IDLE_SECONDS = 3.0
_STEPS_BEFORE_STOP = 10


class Heartbeat:
    """Records the time between its beats under the name of the current phase."""

    def __init__(self, app: App) -> None:
        self.gaps_ms: dict[str, list[float]] = defaultdict(list)
        self._app = app
        self._last = 0.0

    def start(self) -> None:
        """Start the heartbeat."""
        self._last = time.perf_counter()
        self._app.root.after(BEAT_MS, self.beat)

    def beat(self) -> None:
        """Record the gap since the last beat, and schedule the next."""
        now = time.perf_counter()
        self.gaps_ms[self._phase()].append((now - self._last) * 1000)
        self._last = now
        self._app.root.after(BEAT_MS, self.beat)

    def _phase(self) -> str:
        session = self._app.context.session
        if session.stage == "stopping":
            return "stop"
        return session.state.phase or "idle" if session.is_active else "idle"


def follow(app: App) -> Iterator[None]:
    """Act as a user: open pages, start, wait for the end, start again, stop. One `next` per poll."""
    session = app.context.session
    begun = time.perf_counter()
    while time.perf_counter() - begun < _IDLE_SECONDS:
        yield
    app.context.actions.run("start")
    yield from _until(lambda: session.is_active)
    yield from _until(lambda: not session.is_active)
    app.context.actions.run("start")
    yield from _until(lambda: session.is_active)
    yield from _until(lambda: session.state.step is not None and session.state.step.step >= _STEPS_BEFORE_STOP)
    app.context.actions.run("stop")
    yield from _until(lambda: not session.is_active)


def _until(condition: Callable[[], object]) -> Iterator[None]:
    while not condition():
        yield


class Bystander:
    """Answers yes to every question, so that no dialog blocks the benchmark."""

    def confirm_start(self, *_arguments: object, **_options: object) -> bool:
        """Start."""
        return True

    def choose(self, *_arguments: object) -> None:
        """Cancel."""

    def show_failure(self, failure: object) -> None:
        """End the measurement: a failed run does not count."""
        raise SystemExit(f"{failure}")


def main(config_file: Path, result_file: Path) -> None:
    """Run the window through the script and write the gaps."""
    app = App(config_path=config_file, interaction=Bystander())  # type: ignore[arg-type]  # only the methods that are called
    heart, script = Heartbeat(app), follow(app)

    def look() -> None:
        if isinstance(app.context.session.state.failed, RunFailed):
            sys.stderr.write(f"{app.context.session.state.failed}\n")
            app.close()
        elif next(script, "over") == "over":
            result_file.write_text(json.dumps([asdict(g) for g in summarise(heart.gaps_ms)]), encoding="utf-8")
            app.close()
        else:
            app.root.after(100, look)

    app.show()
    keep_interpreter_smooth()
    heart.start()
    app.root.after(100, look)
    app.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
