"""How the run learns: method, length, rate, precision, loss, average."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.config.sections.loss import SCALER_LABELS, Loss, Scaler
from modules.config.sections.method import MethodSettings
from modules.config.sections.noise import Noise
from modules.config.sections.optimizer import OPTIMIZER_LABELS, OPTIMIZERS_NOT_YET, OptimizerSettings
from modules.config.sections.optimizers.adam import AdamW
from modules.config.sections.schedule import SCHEDULE_LABELS, SCHEDULES_NOT_YET, Constant, ScheduleSettings
from modules.objectives.registry import METHODS, method_labels
from modules.settings.field import Section, Setting, When, variants

_FULL = When("trains", ("full",))


class Ema(Section):
    """A running average of the trained weights, often better than the weights themselves."""

    mode: Annotated[
        Literal["off", "train_device", "temp_device"],
        Setting(
            "Average of weights (EMA)",
            "Keeps a slowly following average of what is trained and uses it for samples, validation and the "
            "saved file.",
            group="Averaging",
            choice_labels={
                "off": "Off",
                "train_device": "On the training device",
                "temp_device": "On the offload device",
            },
        ),
    ] = "off"
    decay: Annotated[
        float,
        Ge(0),
        Le(0.99999),
        Setting(
            "EMA decay",
            "How slowly the average follows: 0.999 looks back about a thousand steps.",
            group="Averaging",
            applies_when=When("mode", ("train_device", "temp_device")),
        ),
    ] = 0.999
    update_every_steps: Annotated[
        int,
        Ge(1),
        Le(1000),
        Setting(
            "EMA update every",
            "How often the average is brought up to date.",
            unit="steps",
            group="Averaging",
            level="advanced",
            applies_when=When("mode", ("train_device", "temp_device")),
        ),
    ] = 1


class Training(Section):
    """Method, length, rate and precision."""

    method: Annotated[
        MethodSettings,
        *variants("denoise"),
        Setting(
            "Method",
            f"What is learned from. {' '.join(spec.help for spec in METHODS.values())}",
            group="Method",
            choice_labels=method_labels(),
        ),
    ] = METHODS["denoise"].settings()  # type: ignore[assignment]  # a section with a name
    trains: Annotated[
        Literal["adapter", "full", "embedding", "vae"],
        Setting(
            "What is trained",
            "A LoRA is a small file on top of the model. A fine-tune changes the model itself. An embedding is a "
            "new word.",
            group="What is trained",
            choice_labels={
                "adapter": "LoRA",
                "full": "Fine-tune",
                "embedding": "Embedding",
                "vae": "Image encoder (VAE)",
            },
            not_yet_choices=frozenset({"embedding", "vae"}),
        ),
    ] = "adapter"
    trained_layers: Annotated[
        Literal["all", "attention_mlp", "attention", "custom"],
        Setting(
            "Trained layers",
            "Which layers of the image model a fine-tune changes; the others stay as they are.",
            group="What is trained",
            level="advanced",
            applies_when=_FULL,
            choice_labels={
                "all": "All layers",
                "attention_mlp": "Attention blocks",
                "attention": "Attention only",
                "custom": "Named below",
            },
            not_yet="refused",
        ),
    ] = "all"
    trained_layer_names: Annotated[
        str,
        Setting(
            "Names of trained layers",
            "Parts of layer names, separated by commas: a layer is trained if its name contains one of them.",
            group="What is trained",
            level="advanced",
            applies_when=When("trained_layers", ("custom",)),
        ),
    ] = ""
    trained_layers_regex: Annotated[
        bool,
        Setting(
            "These names are patterns",
            "Reads the names of trained layers as regular expressions.",
            group="What is trained",
            level="advanced",
            applies_when=When("trained_layers", ("custom",)),
        ),
    ] = False
    epochs: Annotated[
        int,
        Ge(1),
        Le(1_000_000),
        Setting(
            "Epochs",
            "How often the run goes through all images.",
            group="Length",
            changeable_on_resume=True,
        ),
    ] = 10
    batch_size: Annotated[
        int,
        Ge(1),
        Le(4096),
        Setting("Batch size", "How many images are learned from at once.", unit="images", group="Length"),
    ] = 1
    accumulation_steps: Annotated[
        int,
        Ge(1),
        Le(4096),
        Setting(
            "Accumulation",
            "Adds up this many batches before the weights move: a larger batch without its memory.",
            unit="batches",
            group="Length",
        ),
    ] = 1
    learning_rate: Annotated[
        float,
        Ge(0),
        Le(100),
        Setting("Learning rate", "How far each step moves the weights.", group="Learning"),
    ] = 1e-4
    learning_rate_scaler: Annotated[
        Scaler,
        Setting(
            "Learning rate times",
            "Multiplies the learning rate by the square root of the number of images that make a step.",
            group="Learning",
            level="advanced",
            choice_labels=SCALER_LABELS,
            not_yet_choices=frozenset(SCALER_LABELS) - {"none"},
        ),
    ] = "none"
    optimizer: Annotated[
        OptimizerSettings,
        *variants("adamw"),
        Setting(
            "Optimizer",
            "The rule that turns gradients into steps.",
            group="Learning",
            choice_labels=OPTIMIZER_LABELS,
            not_yet_choices=OPTIMIZERS_NOT_YET,
        ),
    ] = AdamW()
    schedule: Annotated[
        ScheduleSettings,
        *variants("constant"),
        Setting(
            "Schedule",
            "How the learning rate moves over the run.",
            group="Learning",
            choice_labels=SCHEDULE_LABELS,
            not_yet_choices=SCHEDULES_NOT_YET,
        ),
    ] = Constant()
    clip_norm: Annotated[
        float | None,
        Gt(0),
        Le(10_000),
        Setting(
            "Clip gradients at",
            "Scales unusually large gradients down to this norm.",
            group="Learning",
            level="advanced",
            empty_means="no clipping",
        ),
    ] = 1.0
    max_skipped_steps: Annotated[
        int,
        Ge(0),
        Le(10_000),
        Setting(
            "Broken steps in a row",
            "A step whose loss or gradient is not a number is left out; after this many in a row the run stops.",
            unit="steps",
            group="Learning",
            level="advanced",
            changeable_on_resume=True,
        ),
    ] = 8
    precision: Annotated[
        Literal["float32", "tfloat32", "bfloat16", "float16"],
        Setting(
            "Precision",
            "The number format of the mathematics. bfloat16 on recent GPUs, float16 on older ones, float32 on "
            "the processor.",
            group="Learning",
            choice_labels={
                "float32": "float32",
                "tfloat32": "float32 with TF32",
                "bfloat16": "bfloat16 (mixed)",
                "float16": "float16 (mixed)",
            },
        ),
    ] = "float32"
    fallback_precision: Annotated[
        Literal["float32", "bfloat16"],
        Setting(
            "Where float16 is too small",
            "The number format of what overflows in float16, such as SDXL's image encoder, which is kept in float32 "
            "here whatever this says.",
            group="Learning",
            level="advanced",
            choice_labels={"float32": "float32", "bfloat16": "bfloat16"},
            applies_when=When("precision", ("float16",)),
            not_yet="ignored",
        ),
    ] = "bfloat16"
    autocast_cache: Annotated[
        bool,
        Setting(
            "Keep converted weights",
            "Keeps the 16-bit copies of float32 weights through a step: faster, with more memory.",
            group="Learning",
            level="advanced",
            applies_when=When("precision", ("bfloat16", "float16")),
            not_yet="ignored",
        ),
    ] = True
    attention: Annotated[
        Literal["sdpa", "flash", "cudnn", "flex"],
        Setting(
            "Attention",
            "Which program computes attention. PyTorch's own choice is good on every device.",
            group="Learning",
            level="advanced",
            choice_labels={"sdpa": "PyTorch's choice", "flash": "Flash", "cudnn": "cuDNN", "flex": "Flex"},
            changeable_on_resume=True,
            not_yet="ignored",
        ),
    ] = "sdpa"
    small_weights: Annotated[
        Literal["master", "stochastic"],
        Setting(
            "Trained 16-bit weights",
            "How weights that are kept in 16 bits learn, since small steps vanish in them. Copies in float32 are exact "
            "and take four more bytes a weight. Stochastic rounding takes none and adds a little noise; bfloat16 only.",
            group="Learning",
            level="advanced",
            choice_labels={"master": "Through float32 copies", "stochastic": "By stochastic rounding"},
        ),
    ] = "master"
    noise: Noise = Noise()
    loss: Loss = Loss()
    ema: Ema = Ema()
