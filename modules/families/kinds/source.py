"""The source of a conversion: the opened parts of a model, or the content of an adapter file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.single_file.record import Configs
from modules.families.parts.single_file.write import States
from modules.formats.adapter_file import AdapterFile
from modules.formats.lazy_tensors import LazyTensor


@dataclass(frozen=True, eq=False)
class Source:
    """An opened source: the model's parts, or the content of an adapter file.

    `uses_ema`: the EMA weights were opened in place of those beside them. `beside` are the tensors of networks beside
    the model, such as a depth estimator, by their names in its file.
    """

    path: Path
    kind: FileKind
    configs: Configs
    states: States
    adapter: AdapterFile | None = None
    metadata: Mapping[str, str] | None = None
    uses_ema: bool = False
    beside: Mapping[str, LazyTensor] = field(default_factory=dict)
