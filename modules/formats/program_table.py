"""Which programs load which files: facts about other programs, with the measured versions.

A file of adapters is answered from three tables: how its layers are named (the rows of its model,
`PublishedModel.naming_rows`, and `NAMES`), what kind of change they hold (`CHANGES`, and the rows in the records of the
adapters), and what else is in the file (`EXTRAS`). Every program is in every row; one that is not listed loads none of
the names, and all of the changes and extras. Where several rows apply to a layer, the worst answer counts; a file whose
layers are answered differently is loaded in part. Whole models are in `checkpoint_table`.

Plain LoRA files were measured on 2026-11-21 with each program's own code at real shapes; LoHa, LoKr, OFT, DoRA, damaged
files and inpainting on 2026-11-23. SimpleTuner's names and bundled embeddings are facts read in the programs or their
issue threads. Tests ask diffusers and LyCORIS themselves, and tests/parity/test_merges_of_programs.py has the formulas
of the others. Which names of flow models ComfyUI maps to its own is read in its source (comfy/lora.py, comfy/utils.py;
`COMFY_OF_FLOW`). A fact that turns out wrong, or a new version, changes a row alone. It imports nothing of the program,
since the families' records read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

Word = Literal["all", "part", "none", "unknown"]
Place = Literal[
    "", "attention", "norm", "outside", "added embedding", "inpainting input", "text projection", "T5", "renamed"
]
"""Where in the model a layer is, as far as programs differ in it. "outside" the blocks are the time embedding and the
first and last convolution; "added embedding" are the two of SDXL among these, and "inpainting input" is the first
convolution of an inpainting model. "T5" is any layer of such a text encoder. "renamed" are layers that ComfyUI's own
checkpoints name otherwise than the published ones (`AdapterTargets.renamed`)."""


class Answer(NamedTuple):
    """How much of some layers a program loads, and the reason. `refuses`: with them it loads nothing of the file.

    "unknown" without a reason: it was not measured.
    """

    loads: Word
    why: str = ""
    refuses: bool = False

    @property
    def severity(self) -> int:
        """The order in which answers about the same layers count: the lowest one does."""
        return -1 if self.refuses else ("none", "part", "unknown", "all").index(self.loads)


Answers = Mapping[str, Answer]
ALL = Answer("all")
UNKNOWN = Answer("unknown")
NO_SUCH_NAMES = Answer("none", "does not know these names")


def none(why: str) -> Answer:
    """Return that a program loads none of these layers."""
    return Answer("none", why)


def refuses(why: str) -> Answer:
    """Return that a program loads nothing of a file with such layers."""
    return Answer("none", why, refuses=True)


class Program(NamedTuple):
    """A program that loads model files, in the version stated.

    `is_main` is false for a program that is named only if it differs from the others. `any_size`: it loads adapters for
    models of unpublished sizes.
    """

    version: str
    is_main: bool = True
    any_size: bool = False


PROGRAMS: Mapping[str, Program] = {
    "ComfyUI": Program("0.3.64"),
    "A1111": Program("1.10.1"),
    "Forge": Program("dfdcbab6"),
    "diffusers": Program("0.42.1", any_size=True),
    "diffusers 0.31": Program("0.31.0", is_main=False, any_size=True),
    "sd-scripts": Program("48d368fa", is_main=False),
    "LyCORIS": Program("4.1.0", is_main=False),
}

COMFY_OF_FLOW = "17358c8f"
"""The revision of ComfyUI, of 2026, in whose source the answers about flow models were read: `PROGRAMS` has an older
version, which lacks most of these models."""

# -- the names of layers

Row = Mapping[str, Answer | Mapping[Place, Answer]]
"""The answers by program; if they depend on the place of a layer, the answer for all other layers is under ""."""
_WIDER: Mapping[Place, Place] = {"added embedding": "outside", "inpainting input": "outside"}

DIFFUSERS_NAMES, SGM_NAMES, RAW_PEFT = "kohya, diffusers names", "kohya, SGM names", "raw PEFT"
UNMEASURED: Row = dict.fromkeys(PROGRAMS, UNKNOWN)
NO_MODEL = none("does not have this model")
NEEDS_PREFIX, WRONG_FACTORS = none("needs the prefix transformer."), refuses("raises an error for the factors' names")
COMFY_AND_DIFFUSERS: Row = {
    **UNMEASURED,
    "ComfyUI": ALL,
    "diffusers": ALL,
    **dict.fromkeys(("diffusers 0.31", "sd-scripts"), NO_MODEL),
}
_BEFORE_PEFT: Row = {"ComfyUI": UNKNOWN, "Forge": UNKNOWN, "diffusers": ALL, "diffusers 0.31": UNKNOWN}

# By the naming of a layer (`adapter_forms.Naming`).
NAMES: Mapping[str, Row] = {
    "kohya, text": {
        "ComfyUI": {"": ALL, "norm": UNKNOWN},
        "A1111": {"": ALL, "norm": UNKNOWN, "text projection": UNKNOWN},
        "Forge": {"": ALL, "norm": UNKNOWN},
        "diffusers": ALL,
        "diffusers 0.31": ALL,
        "sd-scripts": {"": ALL, "norm": UNKNOWN, "text projection": UNKNOWN},
        "LyCORIS": ALL,
    },
    "kohya, lora_te1_ for lora_te_": {
        **UNMEASURED,
        **dict.fromkeys(("ComfyUI", "A1111", "Forge", "diffusers"), ALL),
    },
    "kohya, lora_te_ for lora_te1_": {**UNMEASURED, "diffusers": ALL},
    "kohya, text without text_model": {"diffusers": ALL},
    "OFT of sd-scripts": {"sd-scripts": UNKNOWN, "LyCORIS": UNKNOWN},
    "OneTrainer, lora_transformer_": {},
    "SimpleTuner": {"ComfyUI": ALL, "Forge": ALL, "LyCORIS": UNKNOWN},
    "PEFT, text": {
        "ComfyUI": {"": ALL, "text projection": UNKNOWN},
        "Forge": {"": ALL, "text projection": UNKNOWN},
        "diffusers": ALL,
        "diffusers 0.31": ALL,
    },
    "PEFT, text without text_model": {"diffusers": ALL, "diffusers 0.31": UNKNOWN},
    "before PEFT, denoiser": _BEFORE_PEFT,
    "before PEFT, text": _BEFORE_PEFT,
    "PEFT, denoiser without its prefix": {"ComfyUI": UNKNOWN, "Forge": UNKNOWN, "diffusers 0.31": UNKNOWN},
    "other factors in PEFT names": {
        "ComfyUI": UNKNOWN,
        "Forge": UNKNOWN,
        "diffusers": refuses("raises an error: the factors of these names are not supported"),
        "diffusers 0.31": UNKNOWN,
    },
    RAW_PEFT: {},
    "ComfyUI, original names": {"ComfyUI": ALL, "Forge": UNKNOWN, "diffusers 0.31": UNKNOWN},
    "ComfyUI, text": {"ComfyUI": ALL, "diffusers 0.31": UNKNOWN},
    "other": UNMEASURED,
    "unknown": dict.fromkeys(PROGRAMS, none("ignores names that the model does not have")),
}


def answer_about_names(program: str, naming: str, own: Mapping[str, Row], place: Place) -> Answer:
    """Return how a program answers to the names of layers of a model; `own` are the model's own rows, which come first.

    A naming without a row was not measured.
    """
    row = own.get(naming) or NAMES.get(naming)
    if row is None:
        return UNKNOWN
    answer = row.get(program, NO_SUCH_NAMES)
    if isinstance(answer, Answer):
        return answer
    return answer.get(place) or answer.get(_WIDER.get(place, "")) or answer[""]


# -- the changes that layers hold


def plain_lora_only(label: str) -> Answers:
    """Return the answers of programs that load only LoRA: diffusers' converter of kohya's files raises for the rest."""
    error = refuses(f"raises an error: {label} layers are not supported")
    return {"diffusers": error, "diffusers 0.31": error, "sd-scripts": UNKNOWN}


_NO_SCALES = none("loads them without the DoRA scales")
# Unlike the published formula (Liu et al. 2024, eq. 5), they do not divide by the norm of the changed weight.
_NORMS_OF_BASE = none("computes DoRA on the output axis with the norms of the base model, a wrong change")
_NORMS_OF_INPUTS = none("computes DoRA on the output axis with the norms of the inputs, a wrong change")
_IGNORED_ALPHA = none("ignores the alpha in the metadata, a wrong strength")
_INCOMPLETE = Answer("unknown", "was not measured with layers that lack a factor")

# The rows of each type of adapter are in its record (`adapter_types`); these apply to any type.
CHANGES: Mapping[str, Answers] = {
    "DoRA of outputs": {
        "ComfyUI": _NORMS_OF_BASE,
        "A1111": _NORMS_OF_INPUTS,
        "Forge": _NORMS_OF_BASE,
        "diffusers": _NO_SCALES,
        "diffusers 0.31": _NO_SCALES,
        "sd-scripts": UNKNOWN,
    },
    "DoRA of inputs": {
        "diffusers": _NO_SCALES,
        "diffusers 0.31": _NO_SCALES,
        "sd-scripts": UNKNOWN,
        "LyCORIS": refuses("raises an error for DoRA on the input axis"),
    },
    "DoRA of PEFT": {"ComfyUI": none("loads them without the DoRA magnitudes"), "Forge": UNKNOWN},
    "unknown": {**dict.fromkeys(PROGRAMS, UNKNOWN), **plain_lora_only("unknown")},
    "incomplete": {**dict.fromkeys(PROGRAMS, _INCOMPLETE), **plain_lora_only("incomplete")},
    # Factors of different ranks or of rank 0, or an alpha that is not finite.
    "damaged": dict.fromkeys(PROGRAMS, none("cannot apply damaged factors")),
    "alpha in the metadata": {"ComfyUI": _IGNORED_ALPHA, "Forge": _IGNORED_ALPHA, "diffusers 0.31": _IGNORED_ALPHA},
    "unusual alpha": {
        "diffusers": none("gives them the alpha of most layers, a wrong strength"),
        "diffusers 0.31": UNKNOWN,
    },
    # In files whose values cannot be read, such as pickles.
    "unreadable alpha": {
        "diffusers": Answer("unknown", "gives them a wrong strength if their alpha differs from most layers'"),
        "diffusers 0.31": UNKNOWN,
    },
}

# diffusers looks up the alpha of a layer by a name that it derives from the name in the file. For these layers it
# derives a different name, so they get the most common alpha of their part. (The first text encoder has no "text_model"
# in transformers 5.6 and later.)
_TEXT_ATTENTION = r".*\.self_attn\..*"
_LOST_ALPHAS = (
    ("unet", r".*\.attn[12]\.to_(q|k|v|out\.0)"),
    ("text_encoder", r"text_model\..*"),
    ("text_encoder_2", _TEXT_ATTENTION),
)


def diffusers_loses_alpha(part: str, path: str, *, is_bare: bool = False) -> bool:
    """Return whether diffusers 0.42.1 uses the most common alpha of its part for a layer of a kohya file.

    `is_bare`: it is a layer of a text encoder whose name in the file lacks "text_model".
    """
    if is_bare:
        return re.fullmatch(_TEXT_ATTENTION, path) is not None
    return any(part == p and re.fullmatch(layers, path) for p, layers in _LOST_ALPHAS)


# -- what else a file holds

MAX_UNPLACED = 12
"""Forge refuses a file with more tensors than this that it cannot place."""
_OTHER_SIZE = Answer("unknown", "made for a model of a different size than the published ones")
_NO_OUTPUTS = Answer("part", "has no place for embeddings at the output of a text encoder")
_EMBEDDINGS = refuses("raises an error: the file has bundled embeddings")
_NOT_LORA = refuses("raises an error: the file has tensors that are not LoRA")
_ALPHA = refuses("raises an error: alpha is not supported in this form")

EXTRAS: Mapping[str, Answers] = {
    "bundled embeddings": {
        "ComfyUI": Answer("all", "reads embeddings only from its folder embeddings"),
        "Forge": Answer("part", "ignores the bundled embeddings"),
        "diffusers": _EMBEDDINGS,
        "diffusers 0.31": _EMBEDDINGS,
    },
    "embeddings at the output": dict.fromkeys(("ComfyUI", "A1111", "Forge"), _NO_OUTPUTS),
    "many unplaced tensors": {
        "Forge": refuses(f"refuses the file, because it cannot place more than {MAX_UNPLACED} of its tensors")
    },
    "alpha in dotted names": {"diffusers": _ALPHA, "diffusers 0.31": _ALPHA},
    "alpha in ComfyUI's names": {},  # to this and the next one, some models have an answer of their own
    "names without lora": {"diffusers": _NOT_LORA, "diffusers 0.31": _NOT_LORA},
    "matrices of another size": {},
    "another size": {name: _OTHER_SIZE for name, program in PROGRAMS.items() if not program.any_size},
}
