"""The jobs that write a model or adapter file: converting, and the LoRA tools. Their work is in `file_work`."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Interval

from modules.adapters.registry import adapter_labels
from modules.families.kinds.identify import identify
from modules.families.kinds.other_files import BROKEN
from modules.families.kinds.registry import FILE_KINDS
from modules.settings.field import Section, Setting, one_of
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs import spec

_FORMS = {
    "single": "Single file",
    "folder": "Diffusers folder",
    "kohya": "LoRA: kohya",
    "comfyui": "LoRA: ComfyUI",
    "peft": "LoRA: PEFT (diffusers)",
}
# The presets of strengths by their effects; `modules/adapters/tools/blocks.py` has their numbers.
_BLOCK_PRESETS = (
    "only the UNet",
    "only text encoders",
    "only down blocks",
    "only the middle",
    "only up blocks",
    "without down blocks",
    "without the middle",
    "without up blocks",
)


def _forms() -> dict[str, str]:
    names = dict.fromkeys(form for kind in FILE_KINDS.values() for form in kind.forms)
    return {"": "By the output's name", **{name: _FORMS.get(name, name) for name in names}}


def _presets() -> dict[str, str]:
    return {"": "None", **{name: name[:1].upper() + name[1:] for name in _BLOCK_PRESETS}}


_LORA_OUT = Setting("Write to", "The .safetensors file to write.", path_kind="save")
_MODEL_OUT = Setting("Write to", "A .safetensors file, or a folder for a model in diffusers layout.", path_kind="save")
_RANK_HELP = "The largest rank that a layer may have. A smaller rank gives a smaller file and loses more."
Rank = Annotated[int | None, Ge(1), Setting("Rank", _RANK_HELP, empty_means="no limit"), spec.Argument(metavar="N")]
ConvRank = Annotated[
    int | None,
    Ge(1),
    Setting("Convolution rank", "The largest rank of kernels over 1x1.", empty_means="same as the rank"),
    spec.Argument(metavar="N"),
]
Energy = Annotated[
    float | None,
    *Interval(gt=0, le=1),
    Setting(
        "Energy to keep",
        "As many ranks per layer as hold this share of its squared singular values, such as 0.95; at most the rank.",
        empty_means="by rank alone",
    ),
    spec.Argument(metavar="SHARE"),
]
Adapters = Annotated[
    tuple[spec.AdapterChoice, ...],
    Setting(
        "LoRAs", "Each file's change is multiplied by its strength (1 if none is given); a negative one subtracts."
    ),
    spec.positional(spec.LORA_FILE),
]


class ConvertSettings(Section):
    """The file or folder to convert, its new form and its dtype."""

    source: Annotated[
        str,
        Setting("File or folder", "A model file, a diffusers folder or a LoRA.", path_kind="model"),
        spec.positional("IN"),
    ] = ""
    out: Annotated[str, _MODEL_OUT, spec.positional("OUT")] = ""
    to: Annotated[
        str,
        *one_of(_forms),
        Setting(
            "Format",
            "The output format. If it follows from the output's name, a LoRA in kohya form becomes PEFT, and any other "
            "becomes kohya.",
        ),
    ] = ""
    dtype: spec.ModelDtype = ""
    use_ema: Annotated[
        bool, Setting("EMA weights", "Use the EMA weights if a checkpoint has both."), spec.Argument("--ema")
    ] = False
    to_inpainting: Annotated[
        bool,
        Setting(
            "To inpainting",
            "Turn a base model into an inpainting model that predicts the same, to be trained as one.",
        ),
    ] = False
    overwrite: spec.Overwrite = False


class MergeSettings(Section):
    """The model, and the LoRAs that are merged into it."""

    model: Annotated[
        str,
        Setting("Model", "The base model: a file or a diffusers folder.", path_kind="model"),
        spec.positional("MODEL"),
    ] = ""
    out: Annotated[str, _MODEL_OUT, spec.positional("OUT")] = ""
    files: Adapters = ()
    dtype: spec.ModelDtype = ""
    overwrite: spec.Overwrite = False


class CombineSettings(Section):
    """The LoRAs that are added, and the rank of their sum."""

    out: Annotated[str, _LORA_OUT, spec.positional("OUT")] = ""
    files: Adapters = ()
    rank: Annotated[
        int | None,
        Ge(1),
        Setting("Reduce to rank", _RANK_HELP, empty_means="exact"),
        spec.Argument(metavar="N"),
    ] = None
    conv_rank: ConvRank = None
    energy: Energy = None
    dtype: spec.Dtype = ""
    overwrite: spec.Overwrite = False


class ResizeSettings(Section):
    """The LoRA and its new ranks."""

    source: Annotated[
        str,
        Setting("LoRA", f"A {adapter_labels(needs_model=False)} file.", path_kind="model"),
        spec.positional(spec.LORA),
    ] = ""
    out: Annotated[str, _LORA_OUT, spec.positional("OUT")] = ""
    rank: Rank = None
    conv_rank: ConvRank = None
    energy: Energy = None
    dtype: spec.Dtype = ""
    overwrite: spec.Overwrite = False


class ExtractSettings(Section):
    """The two models, and the rank of their difference."""

    base: Annotated[
        str,
        Setting(
            "Base model", "The model that the other was trained from: a file or a diffusers folder.", path_kind="model"
        ),
        spec.positional("BASE"),
    ] = ""
    tuned: Annotated[
        str,
        Setting("Trained model", "The model whose difference becomes the LoRA.", path_kind="model"),
        spec.positional("MODEL"),
    ] = ""
    out: Annotated[str, _LORA_OUT, spec.positional("OUT")] = ""
    rank: Rank = None
    conv_rank: ConvRank = None
    energy: Energy = None
    text_encoders: Annotated[bool, Setting("Text encoders", "Extract the text encoders' difference as well.")] = True
    dtype: Annotated[
        str,
        *one_of(lambda: {name: name for name in ("float16", "bfloat16", "float32")}),
        Setting("Output dtype", "The dtype of the written weights."),
    ] = "float16"
    overwrite: spec.Overwrite = False


class BlockSettings(Section):
    """The LoRA and the strengths of its blocks."""

    source: Annotated[str, Setting("LoRA", "An adapter file.", path_kind="model"), spec.positional(spec.LORA)] = ""
    out: Annotated[str, _LORA_OUT, spec.positional("OUT")] = ""
    strengths: Annotated[
        str,
        Setting(
            "Strengths",
            "Names with numbers: down=1, mid=0.5, up=0, text=0.8, OUT03=0, or *attn2*=0.5. Or a list of numbers as for "
            "LoRA block weight: 17 or 26 for SD, 12 or 20 for SDXL.",
            empty_means="down=1, mid=0.5, up=0",
        ),
        spec.Argument(metavar="STRENGTHS", is_positional=True),
    ] = ""
    preset: Annotated[str, *one_of(_presets), Setting("Preset", "Common strengths, used where none are given.")] = ""
    dtype: spec.Dtype = ""
    overwrite: spec.Overwrite = False


def _require_rank(settings: ResizeSettings | ExtractSettings) -> None:
    """Raise DarkroomError without any limit of the ranks."""
    if settings.rank is None and settings.conv_rank is None and settings.energy is None:
        raise DarkroomError("No rank is given.", advice="Give a rank, such as 16, or the energy to keep, such as 0.95.")


def _require_strengths(settings: BlockSettings) -> None:
    if not settings.strengths.strip() and not settings.preset:
        raise DarkroomError("No strengths are given.", advice="Give the strengths, or choose a preset.")


def convert(settings: ConvertSettings, job: Job) -> JobFinished:
    """Convert a file or folder. A damaged file is reported before torch is loaded, which takes a second or two."""
    kind = identify(from_root(settings.source))
    if kind.kind == BROKEN.name:
        raise DarkroomError(kind.sentence)
    result: JobFinished = load_factory("trainer.jobs.file_work:convert_file")(settings, job)
    return result


CONVERT = spec.JobSpec(
    "convert",
    "Convert",
    "Convert a model or a LoRA to another format or dtype.",
    ConvertSettings,
    "trainer.jobs.files:convert",
    "A model between diffusers folder and single file, a LoRA between the kohya, ComfyUI and PEFT forms, or another "
    "dtype.",
    button="Convert",
    input="source",
    ending="-converted",
)
LORA_MERGE = spec.JobSpec(
    "lora-merge",
    "Merge into a model",
    "Merge LoRAs into a model.",
    MergeSettings,
    "trainer.jobs.file_work:merge_loras",
    "The weights of a model plus the changes by LoRAs: one model that needs no LoRA any more.",
    button="Merge",
    input="model",
    ending="-merged",
)
LORA_COMBINE = spec.JobSpec(
    "lora-combine",
    "Add and subtract",
    "Add and subtract LoRAs, exactly or reduced to a rank.",
    CombineSettings,
    "trainer.jobs.file_work:combine_loras",
    "One LoRA that does what several do together: exact with the sum of their ranks, or reduced to a rank.",
    button="Combine",
    input="files",
    ending="-combined.safetensors",
)
LORA_RESIZE = spec.JobSpec(
    "lora-resize",
    "Resize",
    "Change the ranks of a LoRA.",
    ResizeSettings,
    "trainer.jobs.file_work:resize_lora",
    "A LoRA with other ranks, whose effect changes as little as possible. The error is reported.",
    check=_require_rank,
    button="Resize",
    input="source",
    ending="-resized.safetensors",
)
LORA_EXTRACT = spec.JobSpec(
    "lora-extract",
    "Extract",
    "Write the difference of two models as a LoRA.",
    ExtractSettings,
    "trainer.jobs.file_work:extract_lora",
    "The difference of two models as a LoRA: what a fine-tune learned, in a small file.",
    check=_require_rank,
    button="Extract",
    input="tuned",
    ending="-lora.safetensors",
)
LORA_BLOCKS = spec.JobSpec(
    "lora-blocks",
    "Strengths per block",
    "Scale a LoRA by block.",
    BlockSettings,
    "trainer.jobs.file_work:scale_lora",
    "A LoRA whose blocks have strengths of their own: keep the style, drop the composition.",
    check=_require_strengths,
    button="Scale",
    input="source",
    ending="-blocks.safetensors",
)
