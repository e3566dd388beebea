"""The rank and the alpha of each layer: for all layers, for convolutions, and for layers by name.

A line of `layer_ranks` is `name = rank` or `name = rank:alpha`; a layer with a rank of 0 gets no adapter. The name is
part of a layer's name, or a regular expression after "re:". The strength of a layer is alpha by rank; rank-stabilized
(Kalajdzievski 2023, "rsLoRA"), alpha by the square root of the rank. Files have no such mark: they hold the alpha that
gives the same strength by rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from modules.adapters.training_settings import UNIFORM_RANKS, RankedSettings
from modules.settings.layer_filter import LayerFilter, invalid_entry
from modules.system.errors import DarkroomError
from modules.system.patterns import compiled_pattern
from modules.system.problem import Problem, quote

MAX_RANK, MAX_ALPHA = 1024, 4096.0
_REGEX = "re:"
_MAX_LINE_CHARS = 10_000
_TEXT_MODEL = "text_model."
_LINE = re.compile(r"(?P<name>.+?)\s*=\s*(?P<rank>\d{1,9})\s*(?::\s*(?P<alpha>[\d.eE+-]+))?")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NamedRank:
    """The rank, and perhaps the alpha, of the layers whose name contains `name`, or matches it with `is_regex`."""

    name: str
    rank: int
    alpha: float | None = None
    is_regex: bool = False

    def matches(self, part: str, path: str) -> bool:
        """Return whether a layer matches, by its path with or without the model part."""
        whole = f"{part}.{path}"
        if self.is_regex:
            return any(compiled_pattern(self.name).is_in(text) for text in (path, whole))
        return self.name in whole

    def __str__(self) -> str:
        alpha = "" if self.alpha is None else f":{self.alpha:g}"
        return f"{_REGEX if self.is_regex else ''}{self.name}={self.rank}{alpha}"


@dataclass(frozen=True, slots=True)
class LayerRanks:
    """The rank and the alpha of each layer of a run. The first of `named` that matches a layer decides."""

    rank: int
    alpha: float
    conv_rank: int | None = None
    conv_alpha: float | None = None
    named: tuple[NamedRank, ...] = ()
    is_stabilized: bool = False

    def of(self, part: str, path: str, *, is_convolution: bool) -> tuple[int, float]:
        """Return the rank and the alpha of a layer as files hold it: alpha by rank is the layer's strength."""
        rank, _ = self._values_for(part, path, is_convolution)
        return rank, self.alpha_at(part, path, rank, is_convolution=is_convolution)

    def alpha_at(self, part: str, path: str, rank: int, *, is_convolution: bool) -> float:
        """Return the alpha, as files hold it, of a layer with another rank than set here, such as a file's rank."""
        rank_here, alpha_here = self._values_for(part, path, is_convolution)
        if self.is_stabilized:
            return alpha_here * math.sqrt(rank)
        return alpha_here if rank == rank_here else alpha_here / rank_here * rank

    def leaves_out(self, part: str, path: str) -> bool:
        """Return whether a layer gets no adapter, because its rank is set to 0."""
        return (named := self._first_match(part, path)) is not None and not named.rank

    def _first_match(self, part: str, path: str) -> NamedRank | None:
        path = path.removeprefix(_TEXT_MODEL)
        return next((named for named in self.named if named.matches(part, path)), None)

    def _values_for(self, part: str, path: str, is_convolution: bool) -> tuple[int, float]:
        """Return the rank and the alpha that are set for a layer."""
        rank, alpha = self.rank, None
        if named := self._first_match(part, path):
            rank, alpha = named.rank, named.alpha
        elif is_convolution:
            rank, alpha = self.conv_rank or rank, self.conv_alpha
        if alpha is None:  # the same strength as the other layers, or the same alpha of rank-stabilized ones
            alpha = self.alpha if self.is_stabilized or rank == self.rank else self.alpha / self.rank * rank
        return rank, alpha

    def unused_lines(self, layers: Iterable[tuple[str, str]]) -> list[str]:
        """Return the lines that match none of the layers, which are given by part and path."""
        places = [(part, path.removeprefix(_TEXT_MODEL)) for part, path in layers]
        return [str(named) for named in self.named if not any(named.matches(*place) for place in places)]


Settings = TypeVar("Settings", bound=Any)


def ranks_of(settings: RankedSettings) -> LayerRanks:
    """Return the ranks and alphas of the layers. Raises DarkroomError for an invalid line."""
    return LayerRanks(
        settings.rank,
        settings.alpha,
        settings.conv_rank,
        settings.conv_alpha,
        parse_ranks(settings.layer_ranks),
        settings.rank_stabilized,
    )


def at_layer(settings: Settings, part: str, path: str, weight: Shape) -> Settings:
    """Return the settings with the rank and the alpha of one layer, whose weight has the shape `weight`.

    The strength is alpha by rank then. Other settings stay what they are.
    """
    rank, alpha = ranks_of(settings).of(part, path, is_convolution=is_convolution(weight))
    return cast(Settings, settings.model_copy(update={**UNIFORM_RANKS, "rank": rank, "alpha": alpha}))


@dataclass(frozen=True, slots=True)
class SettingsAt:
    """The settings of an adapter on each layer of a part, for the memory estimate."""

    settings: Any
    part: str

    def __call__(self, path: str, weight: Shape) -> Any:
        """Return the settings of the layer at `path` with a weight of that shape."""
        return at_layer(self.settings, self.part, path, weight)


def settings_by_layer(settings: Any, part: str) -> SettingsAt | None:
    """Return the settings on each layer of a part; None if all layers have the same, or if a line is invalid."""
    if all(getattr(settings, name, value) == value for name, value in UNIFORM_RANKS.items()):
        return None
    try:
        ranks_of(settings)
    except DarkroomError:  # a rule reports it
        return None
    return SettingsAt(settings, part)


@dataclass(frozen=True, slots=True)
class LayersWithRank:
    """The layers of a part that get an adapter, according to their ranks."""

    ranks: LayerRanks
    part: str

    def __call__(self, path: str) -> bool:
        """Return whether the layer at `path` has a rank above 0."""
        return not self.ranks.leaves_out(self.part, path)


def layers_with_rank(settings: Any, part: str) -> LayersWithRank | None:
    """Return which layers of a part get an adapter; None if all of them do, or if a line is invalid."""
    try:
        ranks = ranks_of(settings) if getattr(settings, "layer_ranks", "") else None
    except DarkroomError:  # a rule reports it
        return None
    return LayersWithRank(ranks, part) if ranks is not None and not all(n.rank for n in ranks.named) else None


def is_convolution(weight: Shape) -> bool:
    """Return whether a weight (out, in, kernel) is one with a kernel larger than 1x1, as kohya's `conv_dim` counts."""
    return math.prod(weight[2:]) > 1


def unused_ranks(settings: Any, layers: Iterable[tuple[str, str]]) -> Problem | None:
    """Return a problem if a line of the ranks by layer matches none of the layers, given by part and path."""
    text = getattr(settings, "layer_ranks", "")
    unused = ranks_of(settings).unused_lines(layers) if text else []
    if not unused:
        return None
    return Problem(
        "adapter.layer_ranks",
        f"No layer that is trained has a name with {unused[0]!r}, a line of the ranks by layer.",
        advice="Correct the line on the Training page, as in: attn2 = 32; or choose more layers.",
    )


def require_used_ranks(settings: Any, layers: Iterable[tuple[str, str]]) -> None:
    """Raise DarkroomError if a line of the ranks by layer matches none of the layers, given by part and path."""
    if (problem := unused_ranks(settings, layers)) is not None:
        raise DarkroomError(problem.message, advice=problem.advice)


def parse_ranks(text: str) -> tuple[NamedRank, ...]:
    """Return the ranks by name from the lines of a setting. Raises DarkroomError that names an invalid line.

    Entries without a regular expression may also be separated by commas.
    """
    return tuple(_parse_entry(entry) for entry in _entries(text))


def _entries(text: str) -> Iterable[str]:
    for line in text.splitlines():
        entries = [line] if line.strip().startswith(_REGEX) else line.split(",")
        yield from (entry.strip() for entry in entries if entry.strip())


def _parse_entry(entry: str) -> NamedRank:
    advice = "Write a part of the layers' names, =, and their rank, as in: attn2 = 32, or with an alpha: attn2 = 32:16."
    # The time of a match grows with the square of the spaces in a line.
    match = _LINE.fullmatch(entry) if len(entry) <= _MAX_LINE_CHARS else None
    if match is None:
        raise DarkroomError(f"{quote(entry)} in the ranks of layers is not a name and a rank.", advice=advice)
    name, rank = match["name"], int(match["rank"])
    try:
        alpha = None if match["alpha"] is None else float(match["alpha"])
    except ValueError:
        raise DarkroomError(f"{match['alpha']!r} in the ranks of layers is not an alpha.", advice=advice) from None
    if not 0 <= rank <= MAX_RANK or (alpha is not None and not 0 < alpha <= MAX_ALPHA):
        message = f"{entry!r} in the ranks of layers: a rank is 0 to {MAX_RANK}, an alpha above 0 to {MAX_ALPHA:g}."
        raise DarkroomError(message, advice=advice)
    is_regex = name.startswith(_REGEX)
    name = name.removeprefix(_REGEX).strip() if is_regex else name
    if is_regex and (invalid := invalid_entry(LayerFilter((name,), is_regex=True))):
        message = f"{name!r} in the ranks of layers is not a valid regular expression: {invalid[1]}."
        raise DarkroomError(message, advice=advice)
    return NamedRank(name, rank, alpha, is_regex)


def factorization(size: int, factor: int = -1) -> tuple[int, int]:
    """Return a size as a product of two numbers, the smaller one first, as LyCORIS splits the sides of a weight.

    The smaller one is the largest divisor up to `factor` and the square root of the size; -1 means no limit. A factor
    that divides the size is always one of the two.
    """
    if factor > 0 and size % factor == 0:
        return min(factor, size // factor), max(factor, size // factor)
    limit = math.isqrt(size) if factor < 1 else min(factor, math.isqrt(size))
    small = next(n for n in range(limit, 0, -1) if size % n == 0)
    return small, size // small
