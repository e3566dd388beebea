"""The training itself: method, target, length, learning rate, precision, EMA."""

from typing import Annotated, Any, Literal, cast

from annotated_types import Interval

from modules.config.sections.loss import Loss
from modules.config.sections.noise import Noise
from modules.objectives.methods.reconstruction import Reconstruction
from modules.objectives.registry import METHODS, METHODS_OF_TARGETS
from modules.objectives.spec import MethodSpec
from modules.optim.registry import DEFAULT_OPTIMIZER, OPTIMIZERS
from modules.optim.scaling import SCALER_LABELS, Scaler
from modules.optim.schedule_registry import DEFAULT_SCHEDULE, SCHEDULES
from modules.optim.schedule_spec import ScheduleSettings
from modules.optim.spec import OptimizerSettings
from modules.settings.conditions import USES_DENOISER
from modules.settings.field import Section, Setting, Variant, When, advanced_setting, one_of
from modules.settings.layer_filter import PRESET_LABELS, LayerFilter, LayerPresets, Preset, layer_filter
from modules.settings.lazy_variants import lazy_variants
from modules.settings.shared_types import CountTo1000, UpTo100
from modules.system.factories import late

SIXTEEN_BITS = ("bfloat16", "float16")
"""The precisions and dtypes of 16 bits."""
_FULL = When("trains", ("full",))


class Ema(Section):
    """An exponential moving average of the trained weights, often better than the weights themselves."""

    mode: Annotated[
        Literal["off", "train_device", "temp_device"],
        Setting(
            "EMA",
            "Keeps an exponential moving average of the trained weights and uses it for samples, validation and the "
            "saved file.",
            group="EMA",
            choice_labels={
                "off": "Off",
                "train_device": "On the training device",
                "temp_device": "On the offload device",
            },
        ),
    ] = "off"
    decay: Annotated[
        float,
        *Interval(ge=0, le=0.99999),
        Setting(
            "EMA decay",
            "How slowly the average follows: 0.999 averages over about a thousand steps.",
            group="EMA",
            applies_when=When("mode", ("train_device", "temp_device")),
        ),
    ] = 0.999
    update_every_steps: Annotated[
        CountTo1000,
        advanced_setting(
            "EMA update every",
            "How often the average is updated.",
            unit="steps",
            group="EMA",
            applies_when=When("mode", ("train_device", "temp_device")),
        ),
    ] = 1


class Training(Section):
    """Method, length, rate and precision."""

    method: Annotated[
        Variant,
        *lazy_variants(METHODS, "denoise", lambda spec: spec.help),
        Setting(
            "Method",
            "What the model learns from: your images, pairs of a better and a worse one, or scores of reward models.",
            group="Method",
        ),
    ] = cast(Variant, METHODS["denoise"].settings.with_defaults())
    trains: Annotated[
        Literal["adapter", "full", "embedding", "vae"],
        Setting(
            "Training target",
            "A LoRA is a small file on top of the model. A fine-tune changes the model itself. An embedding is a "
            "new token. A VAE encodes images into latents and decodes them.",
            group="Training target",
            choice_labels={
                "adapter": "LoRA",
                "full": "Fine-tune",
                "embedding": "Embedding",
                "vae": "VAE",
            },
            choice_help={
                "adapter": "A small file on top of the model: the usual choice, with the least memory.",
                "full": "All weights of the model: a file as large as the model, and several times the memory.",
                "embedding": "A new word for prompts: a file of some kilobytes.",
                "vae": "The part that encodes images into latents and decodes them.",
            },
        ),
    ] = "adapter"
    layer_filter: Annotated[
        Preset,
        advanced_setting(
            "Layer filter",
            "Which layers of the denoiser a fine-tune trains; the others stay frozen.",
            group="Training target",
            applies_when=_FULL,
            choice_labels=PRESET_LABELS,
        ),
    ] = "all"
    layer_filter_names: Annotated[
        str,
        advanced_setting(
            "Layer names",
            "Parts of layer names, separated by commas: a layer is trained if its name contains one of them.",
            group="Training target",
            applies_when=When("layer_filter", ("custom",)),
        ),
    ] = ""
    layer_filter_regex: Annotated[
        bool,
        advanced_setting(
            "Use regular expressions",
            "Treats the layer names as regular expressions, each of which may match anywhere in a name.",
            group="Training target",
            applies_when=When("layer_filter", ("custom",)),
        ),
    ] = False
    epochs: Annotated[
        int,
        *Interval(ge=1, le=1_000_000),
        Setting(
            "Epochs",
            "How often the run goes through all images.",
            group="Length",
            changeable_on_resume=True,
        ),
    ] = 10
    batch_size: Annotated[
        int,
        *Interval(ge=1, le=4096),
        Setting(
            "Batch size",
            "How many images the model trains on at once. With accumulation, a step has several of these batches.",
            unit="images",
            group="Length",
        ),
    ] = 1
    accumulation_steps: Annotated[
        int,
        *Interval(ge=1, le=4096),
        Setting(
            "Accumulation steps",
            "Accumulates the gradients of this many batches per step: a larger batch without its memory.",
            unit="batches",
            group="Length",
        ),
    ] = 1
    learning_rate: Annotated[
        UpTo100,
        Setting("Learning rate", "The step size of the optimizer.", group="Learning rate", changeable_on_resume=True),
    ] = 1e-4
    learning_rate_scaler: Annotated[
        Scaler,
        advanced_setting(
            "Learning rate scaler",
            "Multiplies the learning rate by the square root of the batch size, the accumulation steps, or both.",
            group="Learning rate",
            choice_labels=SCALER_LABELS,
        ),
    ] = "none"
    optimizer: Annotated[
        OptimizerSettings,
        *lazy_variants(OPTIMIZERS, DEFAULT_OPTIMIZER.name),
        Setting(
            "Optimizer",
            "The algorithm that updates the weights from gradients.",
            group="Optimizer",
            preview="modules.config.previews:optimizer_preview",
        ),
    ] = DEFAULT_OPTIMIZER.settings.with_defaults()
    schedule: Annotated[
        ScheduleSettings,
        *lazy_variants(SCHEDULES, DEFAULT_SCHEDULE.name),
        Setting(
            "Schedule",
            "How the learning rate changes over the run.",
            group="Learning rate",
            changeable_on_resume=True,
            preview="modules.config.previews:schedule_preview",
        ),
    ] = DEFAULT_SCHEDULE.settings.with_defaults()
    clip_grad_norm: Annotated[
        float | None,
        *Interval(gt=0, le=10_000),
        advanced_setting(
            "Clip grad norm",
            "Scales gradients down to this norm when they are larger. With a fused backward pass, each weight's "
            "gradient is scaled alone.",
            group="Optimizer",
            empty_means="no clipping",
        ),
    ] = 1.0
    max_consecutive_skipped_steps: Annotated[
        int,
        *Interval(ge=0, le=10_000),
        advanced_setting(
            "Max consecutive skipped steps",
            "A step with a NaN or infinite loss or gradient is skipped. More than this many in a row end the run.",
            unit="steps",
            group="Optimizer",
            changeable_on_resume=True,
        ),
    ] = 8
    precision: Annotated[
        Literal["float32", "tfloat32", "bfloat16", "float16"],
        Setting(
            "Precision",
            "The train dtype. bfloat16 on recent GPUs, float16 on older ones, float32 on a CPU.",
            group="Precision and attention",
            choice_labels={
                "float32": "float32",
                "tfloat32": "float32 with TF32",
                "bfloat16": "bfloat16 (mixed)",
                "float16": "float16 (mixed)",
            },
        ),
    ] = "float32"
    fallback_train_dtype: Annotated[
        Literal["float32", "bfloat16"],
        advanced_setting(
            "Fallback train dtype",
            "The dtype of a VAE whose weight dtype is float16 but which overflows in it, as SDXL's own does. bfloat16 "
            "takes half the memory, with less precise latents and samples.",
            group="Precision and attention",
            choice_labels={"float32": "float32", "bfloat16": "bfloat16"},
            applies_when=When("parts.vae.dtype", ("float16",)),
        ),
    ] = "float32"
    autocast_cache: Annotated[
        bool,
        advanced_setting(
            "Autocast cache",
            "Keeps the 16-bit copies of float32 weights through a step: faster, with more memory.",
            group="Precision and attention",
            applies_when=When("precision", SIXTEEN_BITS),
        ),
    ] = True
    cuda_graphs: Annotated[
        Literal["off", "on", "auto"],
        advanced_setting(
            "CUDA graphs",
            "Records the forward and backward pass once for each size of images, and the optimizer's step, and then "
            "enqueues each at once, for small models and fast GPUs, which wait for the computer between their many "
            "small operations. Where a run cannot be recorded, it runs without. Where the optimizer's step is, "
            "learning rates are rounded to float32. Automatic is off: no GPU has passed the check of the results yet.",
            group="Precision and attention",
            changeable_on_resume=True,
            choice_labels={"off": "Off", "on": "On", "auto": "Automatic"},
        ),
    ] = "auto"
    attention: Annotated[
        str,
        *one_of(late("modules.families.attention:attention_labels")),
        advanced_setting(
            "Attention",
            "The attention implementation of the denoiser in training and sampling. PyTorch's own choice is good on "
            "every device.",
            group="Precision and attention",
            changeable_on_resume=True,
            applies_when=USES_DENOISER,
        ),
    ] = "sdpa"
    low_precision_updates: Annotated[
        Literal["master", "stochastic"],
        advanced_setting(
            "Low-precision weight updates",
            "How trained 16-bit weights are updated: small updates vanish in them. Float32 master weights are exact, "
            "with four more bytes per weight. Stochastic rounding takes none and adds a little noise; bfloat16 only.",
            group="Precision and attention",
            choice_labels={"master": "Master weights (float32)", "stochastic": "Stochastic rounding"},
        ),
    ] = "master"
    vae: Reconstruction = Reconstruction.with_defaults()
    noise: Noise = Noise.with_defaults()
    loss: Loss = Loss.with_defaults()
    ema: Ema = Ema.with_defaults()


def method_in_use(training: Training) -> tuple[MethodSpec, Any]:
    """Return the record and the settings of a run's method: its target's own, or the chosen one."""
    if training.trains in METHODS_OF_TARGETS:
        return METHODS_OF_TARGETS[training.trains], getattr(training, training.trains)
    return METHODS[training.method.name], training.method


def filtered_layers(training: Training, presets: LayerPresets) -> LayerFilter:
    """Return which layers of the denoiser a fine-tune trains; `presets` are the denoiser's."""
    names, is_regex = training.layer_filter_names, training.layer_filter_regex
    return layer_filter(training.layer_filter, presets, names, is_regex=is_regex)
