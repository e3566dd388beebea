"""The tools of the Tools page, one record each: its fields, and the command line that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from modules.adapters.registry import adapter_labels
from ui.forms.values import split_file

FieldKind = Literal["model", "lora", "loras", "save_lora", "save_model", "save_any", "choice", "text", "flag"]
Values = Mapping[str, str]
DTYPES: Mapping[str, str] = {"": "As the input", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32"}
SAVES = ("save_lora", "save_model", "save_any")


class MissingValueError(ValueError):
    """A field is empty or wrong: its message is a sentence about what to do."""


@dataclass(frozen=True, slots=True)
class ToolField:
    """A field of a tool: its name, kind, label, help, what it is at first, and the labels of its choices."""

    name: str
    kind: FieldKind
    label: str
    help: str = ""
    default: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool: its title, what it does, its fields, and `arguments(values)`, its command line behind the verb."""

    verb: str
    title: str
    help: str
    fields: tuple[ToolField, ...]
    arguments: Callable[[Values], Sequence[str]]
    button: str = "Start"
    ending: str = ""

    def command(self, values: Values, *, overwrite: bool = False) -> list[str]:
        """Return the command line. Raises MissingValueError for an empty field that is needed."""
        for own in self.fields:
            if own.is_required and own.kind not in ("choice", "flag") and not values.get(own.name, "").strip():
                raise MissingValueError(f"{own.label} is empty.")
        return [self.verb, *self.arguments(values), *(["--overwrite"] if overwrite else [])]

    @property
    def output(self) -> ToolField:
        """The field with the file or folder that is written."""
        return next(own for own in self.fields if own.kind in SAVES)

    def proposed_output(self, values: Values) -> str:
        """Return a name for the result beside the first input; empty without any."""
        first = next(
            (values.get(f.name, "").splitlines() for f in self.fields if f.kind in ("lora", "loras", "model")), []
        )
        source = Path(split_file(first[0])[0]) if first else None
        if source is None or not source.name:
            return ""
        suffix = ".safetensors" if self.output.kind == "save_lora" or source.suffix else ""
        return str(source.with_name(f"{source.name.removesuffix(source.suffix)}{self.ending}{suffix}"))


def _files(values: Values) -> list[str]:
    found = []
    for line in values["files"].splitlines():
        path, strength = split_file(line)
        try:
            found.append(f"{path}:{float(strength):g}")
        except ValueError:
            raise MissingValueError(f"{strength!r} is not a strength of {Path(path).name}: write a number.") from None
    return found


def _option(name: str, values: Values) -> list[str]:
    value = values.get(name, "").strip()
    return [f"--{name.replace('_', '-')}", value] if value else []


def _ranks(values: Values, *, is_needed: bool) -> list[str]:
    for name, label, kind in (
        ("rank", "Rank", int),
        ("conv_rank", "Convolution rank", int),
        ("energy", "Energy", float),
    ):
        text = values.get(name, "").strip()
        try:
            is_valid = not text or kind(text) > 0
        except ValueError:
            is_valid = False
        if not is_valid or (name == "energy" and text and float(text) > 1):
            raise MissingValueError(f"{label} is {text!r}: write a number over 0{', at most 1' * (name == 'energy')}.")
    if is_needed and not values.get("rank", "").strip() and not values.get("energy", "").strip():
        raise MissingValueError("Give a rank, or the energy to keep.")
    return [*_option("rank", values), *_option("conv_rank", values), *_option("energy", values)]


_RANK_HELP = "The largest rank that a layer may have. A smaller rank gives a smaller file and loses more."
_DTYPE = ToolField("dtype", "choice", "Output dtype", "The dtype of the written weights.", "", DTYPES)
_RANKS = (
    ToolField("rank", "text", "Rank", _RANK_HELP, "32", hint="no limit", is_required=False),
    ToolField(
        "conv_rank", "text", "Convolution rank", "The largest rank of kernels over 1x1.", hint="as above",
        is_required=False,
    ),
    ToolField(
        "energy", "text", "Energy to keep",
        "As many ranks per layer as hold this share of its squared singular values, such as 0.95; at most the rank.",
        hint="by rank alone", is_required=False,
    ),
)  # fmt: skip
_FILES_HELP = "Each file's change is multiplied by its strength; a negative strength subtracts it."

CONVERT = ToolSpec(
    "convert",
    "Convert",
    "A model between diffusers folder and single file, a LoRA between the kohya and the PEFT form, or another dtype.",
    (
        ToolField("source", "model", "File or folder", "A model file, a diffusers folder, or a LoRA."),
        ToolField(
            "to", "choice", "Format", "What to write.", "",
            {"": "By the output's name", "single": "Single file", "folder": "Diffusers folder", "kohya": "LoRA: kohya",
             "peft": "LoRA: PEFT (diffusers)"},
        ),
        _DTYPE,
        ToolField("ema", "flag", "EMA weights", "Use the EMA weights if a checkpoint has both."),
        ToolField("to_inpainting", "flag", "To inpainting", "Turn a base model into an inpainting model."),
        ToolField("out", "save_any", "Write to", "A .safetensors file, or a folder for a model in diffusers' layout."),
    ),
    lambda v: [v["source"], v["out"], *_option("to", v), *_option("dtype", v),
               *(["--ema"] if v.get("ema") else []), *(["--to-inpainting"] if v.get("to_inpainting") else [])],
    "Convert",
    "-converted",
)  # fmt: skip
MERGE = ToolSpec(
    "lora-merge",
    "Merge into a model",
    "The weights of a model plus the changes by LoRAs: one model that needs no LoRA any more.",
    (
        ToolField("model", "model", "Model", "The base model: a file or a diffusers folder."),
        ToolField("files", "loras", "LoRAs", _FILES_HELP),
        _DTYPE,
        ToolField("out", "save_model", "Write to", "A .safetensors file, or a folder for diffusers' layout."),
    ),
    lambda v: [v["model"], v["out"], *_files(v), *_option("dtype", v)],
    "Merge",
    "-merged",
)
COMBINE = ToolSpec(
    "lora-combine",
    "Add and subtract",
    "One LoRA that does what several do together: exact with the sum of their ranks, or reduced to a rank.",
    (
        ToolField("files", "loras", "LoRAs", _FILES_HELP),
        ToolField("rank", "text", "Reduce to rank", f"{_RANK_HELP} Empty: exact.", hint="exact", is_required=False),
        *_RANKS[1:],
        _DTYPE,
        ToolField("out", "save_lora", "Write to", "The LoRA file to write."),
    ),
    lambda v: [v["out"], *_files(v), *_ranks(v, is_needed=False), *_option("dtype", v)],
    "Combine",
    "-combined",
)
RESIZE = ToolSpec(
    "lora-resize",
    "Resize",
    "A LoRA with other ranks, with the least change of what it does. The error is reported.",
    (
        ToolField("source", "lora", "LoRA", f"A {adapter_labels(needs_model=False)} file."),
        *_RANKS,
        _DTYPE,
        ToolField("out", "save_lora", "Write to", "The LoRA file to write."),
    ),
    lambda v: [v["source"], v["out"], *_ranks(v, is_needed=True), *_option("dtype", v)],
    "Resize",
    "-resized",
)
EXTRACT = ToolSpec(
    "lora-extract",
    "Extract",
    "The difference of two models as a LoRA: what a fine-tune learned, in a small file.",
    (
        ToolField("tuned", "model", "Trained model", "The model whose difference becomes the LoRA."),
        ToolField("base", "model", "Base model", "The model that it was trained from."),
        *_RANKS,
        ToolField("text", "flag", "Text encoders", "Also extract the difference of the text encoders.", "1"),
        ToolField("dtype", "choice", "Output dtype", "The dtype of the written weights.", "float16",
                  {name: label for name, label in DTYPES.items() if name}),
        ToolField("out", "save_lora", "Write to", "The LoRA file to write."),
    ),
    lambda v: [v["base"], v["tuned"], v["out"], *_ranks(v, is_needed=True), *_option("dtype", v),
               *([] if v.get("text") else ["--no-text-encoders"])],
    "Extract",
    "-lora",
)  # fmt: skip
BLOCKS = ToolSpec(
    "lora-blocks",
    "Strengths per block",
    "A LoRA whose blocks have strengths of their own: keep the style, drop the composition.",
    (
        ToolField("source", "lora", "LoRA", "An adapter file."),
        ToolField(
            "preset", "choice", "Preset", "Common choices. The strengths below replace it.", "",
            {"": "None"} | {name: name.capitalize() for name in (
                "only the UNet", "only text encoders", "only down blocks", "only the middle", "only up blocks",
                "without down blocks", "without the middle", "without up blocks")},
        ),
        ToolField(
            "strengths", "text", "Strengths",
            "Names with numbers: down=1, mid=0.5, up=0, text=0.8, OUT03=0, or *attn2*=0.5. Or a list of numbers as "
            "for LoRA block weight: 17 or 26 for SD, 12 or 20 for SDXL.",
            hint="down=1, mid=0.5, up=0", is_required=False,
        ),
        _DTYPE,
        ToolField("out", "save_lora", "Write to", "The LoRA file to write."),
    ),
    lambda v: [v["source"], v["out"], _strengths(v), *_option("dtype", v)],
    "Scale",
    "-blocks",
)  # fmt: skip
TOOLS: tuple[ToolSpec, ...] = (CONVERT, MERGE, COMBINE, RESIZE, EXTRACT, BLOCKS)


def _strengths(values: Values) -> str:
    text = values.get("strengths", "").strip() or values.get("preset", "").strip()
    if not text:
        raise MissingValueError("Give the strengths, or choose a preset.")
    return text
