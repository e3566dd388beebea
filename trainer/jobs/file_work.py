"""Converting, merging, combining, resizing, extracting and scaling: each opens its files and writes atomically."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import get_args

import torch

from modules.adapters.tools.blocks import scale_blocks
from modules.adapters.tools.combine import combine, resize
from modules.adapters.tools.extract import extract_difference
from modules.adapters.tools.low_rank import RankChoice
from modules.adapters.tools.merge import merge_into_model
from modules.adapters.tools.opening import WeightedFile, content_of, open_adapter, widest_dtype
from modules.adapters.tools.results import LoraResult, tool_metadata, write_result
from modules.families.kinds.conversion import Source, as_inpainting, conversion_notes, convert, open_source, target_form
from modules.families.kinds.identify import identify
from modules.families.kinds.record import Form
from modules.formats.repository import index_file
from modules.system.devices import dtype_of
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.files import (
    BlockSettings,
    CombineSettings,
    ConvertSettings,
    ExtractSettings,
    MergeSettings,
    ResizeSettings,
)
from trainer.jobs.spec import AdapterChoice, require_ending
from trainer.timing import in_local_zone

_MB = 1_000_000


def convert_file(settings: ConvertSettings, job: Job) -> JobFinished:
    """Convert a file or folder. Raises DarkroomError if it cannot be converted."""
    source, out = from_root(settings.source), from_root(settings.out)
    require_free([source], out, overwrite=settings.overwrite)
    kind = identify(source)
    form = target_form(kind, out, _form(settings.to))
    if form == "single":
        require_free([source], out.with_suffix(".yaml"), overwrite=settings.overwrite)
    opened = open_source(source, use_ema=settings.use_ema)
    notes = [f"Input: {kind.sentence}"]
    if settings.to_inpainting:
        opened = as_inpainting(opened)
        notes.append("It is an inpainting model now, which predicts the same as before until it is trained as one.")
    job.note((*notes, *conversion_notes(opened, form)))
    written = _convert(job, opened, out, form, settings.dtype)
    result = f"Result: {identify(written[0]).sentence}"
    return JobFinished(f"Converted {source.name}.", tuple(map(str, written)), (result,))


def merge_loras(settings: MergeSettings, job: Job) -> JobFinished:
    """Write a model with LoRAs merged into its weights, as one file or, without ".safetensors", as a folder."""
    model, out, files = from_root(settings.model), from_root(settings.out), _weighted_files(settings.files)
    require_free([model, *(f.path for f in files)], out, overwrite=settings.overwrite)
    form: Form = "single" if out.suffix.lower() == ".safetensors" else "folder"
    if form == "single":
        require_free([model], out.with_suffix(".yaml"), overwrite=settings.overwrite)
    elif out.suffix.lower() in (".ckpt", ".pt"):
        raise DarkroomError(f"{out.name} cannot be written.", advice="End the name in .safetensors, or name a folder.")
    job.progress("reading", 0, 1)
    merge = merge_into_model(open_source(model), files, dtype=_plain_dtype(settings.dtype))
    job.note(merge.sentences)
    written = _convert(job, merge.source, out, form, settings.dtype)
    return JobFinished(f"Merged {_name_or_number(files)} into {model.name}.", tuple(map(str, written)))


_SCALED = "scaled_float8"


def _plain_dtype(dtype: str) -> torch.dtype | None:
    return dtype_of(dtype) if dtype not in ("", _SCALED) else None


def _convert(job: Job, source: Source, out: Path, form: Form, dtype: str) -> list[Path]:
    return convert(
        source,
        out,
        form,
        dtype=_plain_dtype(dtype),
        created=_now(),
        on_written=_report_writing(job),
        is_scaled_float8=dtype == _SCALED,
    )


def combine_loras(settings: CombineSettings, job: Job) -> JobFinished:
    """Write the weighted sum of LoRAs as one LoRA: exact, or reduced to a rank by SVD."""
    out, files, choice = from_root(settings.out), _weighted_files(settings.files), _rank_choice(settings)
    is_exact = choice == RankChoice()
    sources = [_open(job, file.path, out, overwrite=settings.overwrite) for file in files]
    result = combine(sources, files, None if is_exact else choice, _report_layers(job))
    inputs = [{"file": file.path.name, "strength": file.strength} for file in files]
    metadata = tool_metadata("combine LoRAs", inputs, **({} if is_exact else asdict(choice)))
    path = _write(job, result, sources, out, settings.dtype, metadata)
    return JobFinished(f"Combined {_name_or_number(files)}.", (str(path),))


def resize_lora(settings: ResizeSettings, job: Job) -> JobFinished:
    """Write a LoRA with other ranks, by SVD."""
    source, out, choice = from_root(settings.source), from_root(settings.out), _rank_choice(settings)
    opened = _open(job, source, out, overwrite=settings.overwrite)
    result = resize(opened, choice, _report_layers(job))
    metadata = {**(opened.metadata or {}), **tool_metadata("resize", [{"file": source.name}], **asdict(choice))}
    path = _write(job, result, [opened], out, settings.dtype, metadata)
    return JobFinished(f"Resized {source.name}.", (str(path),))


def scale_lora(settings: BlockSettings, job: Job) -> JobFinished:
    """Write a LoRA with a strength for each block."""
    source, out = from_root(settings.source), from_root(settings.out)
    strengths = settings.strengths.strip() or settings.preset
    opened = _open(job, source, out, overwrite=settings.overwrite)
    result = scale_blocks(opened, strengths)
    inputs = [{"file": source.name}]
    metadata = {**(opened.metadata or {}), **tool_metadata("strengths per block", inputs, strengths=strengths)}
    path = _write(job, result, [opened], out, settings.dtype, metadata)
    return JobFinished(f"Scaled {source.name} by block.", (str(path),))


def extract_lora(settings: ExtractSettings, job: Job) -> JobFinished:
    """Write the difference of two models as a LoRA."""
    base, tuned, out = from_root(settings.base), from_root(settings.tuned), from_root(settings.out)
    choice = _rank_choice(settings)
    require_free([base, tuned], out, overwrite=settings.overwrite)
    require_ending(out, ".safetensors", "a LoRA")
    job.progress("reading", 0, 1)
    one, other = open_source(base), open_source(tuned)
    result = extract_difference(one, other, choice, _report_layers(job), with_text_encoders=settings.text_encoders)
    inputs = [{"file": base.name, "role": "base"}, {"file": tuned.name, "role": "tuned"}]
    like = Source(out, one.kind, one.configs, {})
    job.note(result.sentences)
    path = write_result(
        result,
        like,
        out,
        metadata=tool_metadata("extract", inputs, **asdict(choice)),
        dtype=dtype_of(settings.dtype),
        created=_now(),
        on_written=_report_writing(job),
    )
    return JobFinished(f"Extracted a LoRA from {tuned.name}.", (str(path),))


def require_free(sources: Sequence[Path], out: Path, *, overwrite: bool) -> None:
    """Raise DarkroomError if the destination is a source, already exists, or has too little disk space."""
    for source in sources:
        if out == source or source in out.parents:
            raise DarkroomError(f"{out} is the source or inside it.", advice="Choose another destination.")
    if out.exists() and not overwrite:
        raise DarkroomError(f"{out} already exists.", advice="Choose another name, or add --overwrite.")
    if out.is_dir() and any(out.iterdir()) and index_file(out) is None:
        raise DarkroomError(f"{out} is a folder with other files in it.", advice="Choose another destination.")
    place = next(p for p in out.parents if p.exists())
    size = _size(sources[0]) if sources else 0
    if shutil.disk_usage(place).free < size // 2:
        raise DarkroomError(
            f"There is too little free space on the disk of {place}.", advice="Free some space first.", remedy="space"
        )


def _size(source: Path) -> int:
    size = sum(p.stat().st_size for p in source.rglob("*") if p.is_file()) if source.is_dir() else 0
    return size or (source.stat().st_size if source.is_file() else 0)


def _form(name: str) -> Form | None:
    """Return the form of a name; None for an empty one."""
    return next((form for form in get_args(Form) if form == name), None)


def _weighted_files(files: Sequence[AdapterChoice]) -> list[WeightedFile]:
    if not files:
        raise DarkroomError("No LoRA is given.", advice="Choose at least one LoRA file.")
    return [WeightedFile(from_root(file.path), file.strength) for file in files]


def _open(job: Job, path: Path, out: Path, *, overwrite: bool) -> Source:
    require_free([path], out, overwrite=overwrite)
    require_ending(out, ".safetensors", "a LoRA")
    job.progress("reading", 0, 1)
    return open_adapter(path)


def _write(
    job: Job, result: LoraResult, sources: Sequence[Source], out: Path, dtype: str, metadata: Mapping[str, str]
) -> Path:
    layers = [layer for source in sources for layer in content_of(source).layers]
    stored: torch.dtype = dtype_of(dtype) if dtype else widest_dtype(layers)
    doubts = (f"{s.path.name}: {doubt}" for s in sources if (doubt := content_of(s).doubt))
    job.note(dict.fromkeys((*result.sentences, *doubts)))
    return write_result(
        result, sources[0], out, metadata=metadata, dtype=stored, created=_now(), on_written=_report_writing(job)
    )


def _rank_choice(settings: CombineSettings | ResizeSettings | ExtractSettings) -> RankChoice:
    return RankChoice(settings.rank, settings.energy, settings.conv_rank)


def _name_or_number(files: Sequence[WeightedFile]) -> str:
    return files[0].path.name if len(files) == 1 else f"{len(files)} LoRAs"


def _report_layers(job: Job) -> Callable[[int, int], None]:
    return lambda done, total: job.progress("layers", done, total)


def _report_writing(job: Job) -> Callable[[int, int], None]:
    return lambda done, total: job.progress("writing (MB)", done // _MB, -(-total // _MB))


def _now() -> datetime:
    return in_local_zone(datetime.now())
