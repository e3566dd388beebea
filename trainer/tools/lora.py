"""The LoRA tools: each opens its files, reports progress and writes its result atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from modules.adapters.tools.blocks import scaled_by_block
from modules.adapters.tools.combine import combined
from modules.adapters.tools.extract import extracted
from modules.adapters.tools.low_rank import RankChoice
from modules.adapters.tools.merge import merged
from modules.adapters.tools.opening import WeightedFile, content_of, open_adapter, widest_dtype
from modules.adapters.tools.resize import resized
from modules.adapters.tools.results import LoraResult, tool_metadata, write_result
from modules.families.kinds.conversion import convert, open_source
from modules.families.kinds.identify import identify
from modules.families.kinds.record import Form
from modules.families.kinds.source import Source
from modules.system.devices import dtype_of
from modules.system.errors import DarkroomError
from trainer.job_events import JobFinished
from trainer.tools.destinations import require_free
from trainer.tools.job import Job

_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Output:
    """Where a tool writes, in which dtype (None: that of the inputs), and whether it may replace what is there."""

    path: Path
    dtype: str | None = None
    overwrite: bool = False


def merge_loras(job: Job, model: Path, files: Sequence[WeightedFile], output: Output) -> JobFinished:
    """Write a model with LoRAs merged into its weights, as one file or, without ".safetensors", as a folder."""
    _require_files(files)
    require_free([model, *(f.path for f in files)], output.path, overwrite=output.overwrite)
    form: Form = "single" if output.path.suffix.lower() == ".safetensors" else "folder"
    if form == "single":
        require_free([model], output.path.with_suffix(".yaml"), overwrite=output.overwrite)
    elif output.path.suffix.lower() in (".ckpt", ".pt"):
        raise DarkroomError(
            f"{output.path.name} cannot be written.", advice="End the name in .safetensors, or name a folder."
        )
    dtype = dtype_of(output.dtype) if output.dtype else None
    job.progress("reading", 0, 1)
    found = merged(open_source(model), files, dtype=dtype)
    job.note(found.sentences)
    written = convert(found.source, output.path, form, dtype=dtype, created=_now(), on_written=_writing(job))
    return JobFinished(f"Merged {_several(files)} into {model.name}.", tuple(map(str, written)))


def combine_loras(job: Job, files: Sequence[WeightedFile], choice: RankChoice | None, output: Output) -> JobFinished:
    """Write the weighted sum of LoRAs as one LoRA: exact, or with a choice reduced by SVD."""
    _require_files(files)
    sources = [_opened(job, file.path, output) for file in files]
    result = combined(sources, files, choice, _layers(job))
    inputs = [{"file": file.path.name, "strength": file.strength} for file in files]
    metadata = tool_metadata("combine LoRAs", inputs, **_rank_facts(choice))
    path = _write(job, result, sources, output, metadata)
    return JobFinished(f"Combined {_several(files)}.", (str(path),))


def resize_lora(job: Job, source: Path, choice: RankChoice, output: Output) -> JobFinished:
    """Write a LoRA with other ranks."""
    opened = _opened(job, source, output)
    result = resized(opened, choice, _layers(job))
    metadata = {**(opened.metadata or {}), **tool_metadata("resize", [{"file": source.name}], **_rank_facts(choice))}
    path = _write(job, result, [opened], output, metadata)
    return JobFinished(f"Resized {source.name}.", (str(path),))


def scale_lora(job: Job, source: Path, strengths: str, output: Output) -> JobFinished:
    """Write a LoRA with a strength for each block."""
    opened = _opened(job, source, output)
    result = scaled_by_block(opened, strengths)
    inputs = [{"file": source.name}]
    metadata = {**(opened.metadata or {}), **tool_metadata("strengths per block", inputs, strengths=strengths)}
    path = _write(job, result, [opened], output, metadata)
    return JobFinished(f"Scaled {source.name} by block.", (str(path),))


def extract_lora(
    job: Job, base: Path, tuned: Path, choice: RankChoice, output: Output, *, with_text_encoders: bool = True
) -> JobFinished:
    """Write the difference of two models as a LoRA."""
    require_free([base, tuned], output.path, overwrite=output.overwrite)
    _require_lora_name(output.path)
    job.progress("reading", 0, 1)
    one, other = open_source(base), open_source(tuned)
    result = extracted(one, other, choice, _layers(job), with_text_encoders=with_text_encoders)
    inputs = [{"file": base.name, "role": "base"}, {"file": tuned.name, "role": "tuned"}]
    like = Source(output.path, one.kind, one.configs, {})
    dtype = output.dtype or "float16"
    job.note(result.sentences)
    path = write_result(
        result,
        like,
        output.path,
        metadata=tool_metadata("extract", inputs, **_rank_facts(choice)),
        dtype=dtype_of(dtype),
        created=_now(),
        on_written=_writing(job),
    )
    return JobFinished(f"Extracted a LoRA from {tuned.name}.", (str(path),))


def _opened(job: Job, path: Path, output: Output) -> Source:
    require_free([path], output.path, overwrite=output.overwrite)
    _require_lora_name(output.path)
    job.progress("reading", 0, 1)
    kind = identify(path)
    if kind.facts.get("defect") == "missing":
        raise DarkroomError(kind.sentence)
    return open_adapter(path)


def _write(
    job: Job, result: LoraResult, sources: Sequence[Source], output: Output, metadata: Mapping[str, str]
) -> Path:
    layers = [layer for source in sources for layer in content_of(source).layers]
    dtype: torch.dtype = dtype_of(output.dtype) if output.dtype else widest_dtype(layers)
    doubts = (f"{s.path.name}: {doubt}" for s in sources if (doubt := content_of(s).doubt))
    job.note(dict.fromkeys((*result.sentences, *doubts)))
    return write_result(
        result, sources[0], output.path, metadata=metadata, dtype=dtype, created=_now(), on_written=_writing(job)
    )


def _require_files(files: Sequence[WeightedFile]) -> None:
    if not files:
        raise DarkroomError("No LoRA is given.", advice="Choose at least one LoRA file.")


def _require_lora_name(path: Path) -> None:
    if path.suffix.lower() != ".safetensors":
        raise DarkroomError(f"{path.name} is not a valid name for a LoRA.", advice="End its name in .safetensors.")


def _rank_facts(choice: RankChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    return {"rank": choice.rank, "energy": choice.energy, "conv_rank": choice.conv_rank}


def _several(files: Sequence[WeightedFile]) -> str:
    return files[0].path.name if len(files) == 1 else f"{len(files)} LoRAs"


def _layers(job: Job) -> Any:
    return lambda done, total: job.progress("layers", done, total)


def _writing(job: Job) -> Any:
    return lambda done, total: job.progress("writing (MB)", done // _MB, -(-total // _MB))


def _now() -> datetime:
    return datetime.now().astimezone()
