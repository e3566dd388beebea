"""Events about how a run uses the machine: compiled blocks, automatic settings, profiles, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modules.system.problem import count


@dataclass(frozen=True, slots=True)
class BlocksCompiled:
    """Blocks of the denoiser were compiled in `seconds`: `num_graphs` graphs, which blocks of one structure share.

    `num_recompilations` counts the graphs compiled since the dry run, for other sizes or other trained parts.
    """

    num_blocks: int
    num_graphs: int
    seconds: float
    num_recompilations: int = 0

    @property
    def summary(self) -> str:
        """The event as a sentence."""
        graphs = f"{count(self.num_graphs, 'graph')} in {self.seconds:,.1f} s"
        recompiled = count(self.num_recompilations, "recompilation")
        if self.num_recompilations:
            return f"Compiled {graphs} for another size or another trained part; {recompiled} so far."
        return f"Compiled {count(self.num_blocks, 'block')}: {graphs}; {recompiled}."


@dataclass(frozen=True, slots=True)
class SettingChosen:
    """The run has decided about an automatic setting, `path`; the summary is a sentence."""

    path: str
    summary: str


@dataclass(frozen=True, slots=True)
class ImagesReported:
    """The losses of a run's images were compared after a step; the summary is a sentence.

    `path` is the page, empty if it could not be written. `outliers` are the paths of the images that stand out, with
    how many times the usual loss each has.
    """

    step: int
    num_images: int
    summary: str
    path: str
    outliers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProfileWritten:
    """Steps were profiled up to `step`: `path` is the folder of the trace and the tables.

    `slowest` are the functions that took most of the host's time, with their shares in percent.
    """

    step: int
    num_steps: int
    path: str
    slowest: Mapping[str, float] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The event as a sentence."""
        shares = ", ".join(f"{name} {share:.0f} %" for name, share in self.slowest.items())
        most = f" Most of the host's time: {shares}." if shares else ""
        return f"Profiled {count(self.num_steps, 'step')}: trace and tables are in {self.path}.{most}"


@dataclass(frozen=True, slots=True)
class PaceMeasured:
    """The pace of an attempt of a run and the most memory that it held, in bytes, once its last step is done.

    `step_seconds` is the median of its fastest 50 steps or minute, `num_steps` the number of steps that were timed.
    `pinned_peak` is the part of the computer's memory that is pinned for the card.
    """

    num_steps: int
    step_seconds: float
    process_peak: int
    pinned_peak: int = 0
    card_peak: int = 0

    @property
    def summary(self) -> str:
        """The event as a sentence."""
        pinned = f" ({self.pinned_peak / 1e9:.1f} GB of it pinned)" if self.pinned_peak else ""
        card = f", {self.card_peak / 1e9:.1f} GB of the card" if self.card_peak else ""
        memory = f"{self.process_peak / 1e9:.1f} GB of the computer{pinned}{card}"
        return f"A step took {self.step_seconds:.3g} s. Peak memory: {memory}."


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """The memory in use, in bytes: of the run's process and of all programs on the machine; on the card by the run.

    `card_total` is 0 without a card. `card_peak` is the most that the run has held there. What other programs hold on
    the card is not counted.
    """

    process: int
    machine_used: int
    machine_total: int
    card: int = 0
    card_peak: int = 0
    card_total: int = 0
