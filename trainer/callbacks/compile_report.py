"""What was compiled, as events: after the dry run, and after each step that had to compile again."""

from __future__ import annotations

from collections.abc import Callable

from modules.memory.compiled_blocks import Compilation, CompileCounts
from trainer.events import BlocksCompiled, Event, WarningRaised
from trainer.step.callback import DryRunCheck, DryRunState, StepView


class CompileReport:
    """Reports the compiled blocks of the denoiser, and turns compiling off once it has failed."""

    def __init__(self, compilation: Compilation, emit: Callable[[Event], None]) -> None:
        self._compilation = compilation
        self._emit = emit
        self._reported = CompileCounts()
        self._num_first_graphs: int | None = None

    def after_step(self, view: StepView) -> None:
        """Report what the step compiled."""
        self._report()

    def dry_run_checks(self, state: DryRunState) -> tuple[DryRunCheck, ...]:
        """Return the report of what the dry run's training step compiled; it never fails."""
        return (DryRunCheck("compiled blocks", "Switch off compiling the model.", self._report),)

    def _report(self) -> None:
        compilation, former = self._compilation, self._reported
        if compilation.failure and compilation.is_on:
            compilation.turn_off()
            self._emit(
                WarningRaised(
                    f"The UNet could not be compiled, because {compilation.failure}. The run continues without "
                    "compiling; its results are the same.",
                    "Switch off Compile the model, or install what is missing.",
                )
            )
        now = compilation.counts
        if not compilation.is_on or now.num_graphs == former.num_graphs:
            return
        if self._num_first_graphs is None:
            self._num_first_graphs = now.num_graphs
        self._reported = now
        self._emit(
            BlocksCompiled(
                now.num_blocks,
                now.num_graphs - former.num_graphs,
                now.seconds - former.seconds,
                now.num_graphs - self._num_first_graphs,
            )
        )
