"""Folders, devices and the seed of a run."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from modules.settings.field import Section, Setting, When, advanced_setting


class General(Section):
    """Folders, devices and switches that concern the run as a whole."""

    workspace_dir: Annotated[
        str,
        Setting(
            "Workspace folder",
            "Everything a run leaves behind goes here: each run gets its own sub-folder under runs/ with its "
            "samples, backups, logs and the config it ran with.",
            group="Folders",
            path_kind="folder",
        ),
    ] = "workspace/run"
    cache_dir: Annotated[
        str,
        Setting(
            "Cache folder",
            "Encoded images and captions are kept here and reused by later runs. Everything in it can be deleted "
            "at any time; it is rebuilt when needed.",
            group="Folders",
            path_kind="folder",
        ),
    ] = "workspace-cache"
    notes: Annotated[
        str,
        Setting(
            "Notes",
            "Free text about this config, kept in its file. Presets describe here what they are for.",
            group="Notes",
            multiline=True,
            changeable_on_resume=True,
        ),
    ] = ""
    seed: Annotated[
        int,
        *Interval(ge=0, le=2**32 - 1),
        Setting(
            "Seed",
            "All randomness of the run derives from this number. The same seed, data and settings give the "
            "same result on the same machine.",
            group="Run",
        ),
    ] = 42
    tensorboard: Annotated[
        bool,
        Setting(
            "Write TensorBoard logs",
            "Writes losses, learning rates and samples to the run's tensorboard folder.",
            group="Logs",
            changeable_on_resume=True,
        ),
    ] = True
    tensorboard_always_on: Annotated[
        bool,
        advanced_setting(
            "Always-on TensorBoard",
            "Keeps TensorBoard's own server running as long as the window is open. Without it, the button TensorBoard "
            "on the Run page starts it.",
            group="Logs",
            changeable_on_resume=True,
        ),
    ] = False
    tensorboard_port: Annotated[
        int,
        *Interval(ge=1, le=65535),
        advanced_setting(
            "TensorBoard port",
            "The port of TensorBoard's server on this machine. If it is taken, another free one is used.",
            group="Logs",
            applies_when=When("tensorboard_always_on", (True,)),
            changeable_on_resume=True,
        ),
    ] = 6006
    tensorboard_expose: Annotated[
        bool,
        advanced_setting(
            "Expose TensorBoard",
            "Makes TensorBoard reachable from other machines on the network. The window asks before it does.",
            group="Logs",
            applies_when=When("tensorboard_always_on", (True,)),
            changeable_on_resume=True,
        ),
    ] = False
    separate_process: Annotated[
        bool,
        Setting(
            "Train in a separate process",
            "The run continues if the window crashes or is closed, and the next window follows it. Each start takes a "
            "few seconds longer than in the window's own process. Runs of the command line always have one.",
            group="Run",
            changeable_on_resume=True,
        ),
    ] = False
    only_cache: Annotated[
        bool,
        advanced_setting(
            "Only cache", "Fills the caches with all images and captions, then ends without training.", group="Run"
        ),
    ] = False
    train_device: Annotated[
        str,
        Setting(
            "Training device",
            "Where training happens. auto: the first GPU, else the CPU. Also cuda:1, mps, cpu.",
            group="Devices",
        ),
    ] = "auto"
    temp_device: Annotated[
        str,
        advanced_setting(
            "Offload device",
            "Where parts of the model are kept while they are not needed. The CPU's memory is the usual "
            "choice; enter the training device to keep everything there.",
            group="Devices",
        ),
    ] = "cpu"
    num_threads: Annotated[
        int,
        *Interval(ge=0, le=256),
        advanced_setting(
            "CPU threads",
            "How many CPU threads PyTorch may use. With 0 a short measurement decides, once per machine. A run keeps "
            "its number, also when it is resumed: another number changes the last bits of the result.",
            group="Devices",
        ),
    ] = 0
    deterministic: Annotated[
        bool,
        advanced_setting(
            "Deterministic mode",
            "Makes runs on one machine reproducible bit for bit. It costs some speed on a GPU.",
            group="Devices",
        ),
    ] = False
    debug_checks: Annotated[
        bool,
        advanced_setting(
            "Debug checks",
            "Checks every operation for tensors on the wrong device and for offloaded parts in use. Slow; "
            "for finding bugs.",
            group="Devices",
            changeable_on_resume=True,
        ),
    ] = False


_SHARED = When("enabled", (True,))


class MultiGpu(Section):
    """Training on several GPUs of this machine at once, which share the images of each step."""

    group: ClassVar[str] = "Several GPUs"

    enabled: Annotated[
        bool,
        advanced_setting(
            "Multi-GPU training",
            "The GPUs share the images of each step, batch size times accumulation steps in all, and add up their "
            "gradients. The result is the same as on one GPU.",
        ),
    ] = False
    device_indexes: Annotated[
        str,
        advanced_setting(
            "GPUs",
            "Device indexes, separated by commas, such as 0, 1.",
            applies_when=_SHARED,
            empty_means="all of them",
        ),
    ] = ""
    sharding: Annotated[
        Literal["auto", "on", "off"],
        advanced_setting(
            "Sharding",
            "Shards the weights, gradients and optimizer state of a fine-tuned denoiser among the GPUs (FSDP), so that "
            "each needs a part of the memory, instead of keeping all of them on each GPU.",
            applies_when=_SHARED,
            choice_labels={"auto": "Where supported", "on": "On", "off": "Off"},
        ),
    ] = "auto"
    reduce_precision: Annotated[
        Literal["float32", "float32_stochastic", "weights", "weights_stochastic"],
        advanced_setting(
            "Gradient reduce dtype",
            "The dtype in which the gradients of the GPUs are reduced. With stochastic rounding less "
            "is lost where the weights are kept in 16 bits.",
            applies_when=_SHARED,
            choice_labels={
                "float32": "float32",
                "float32_stochastic": "float32, stochastic rounding",
                "weights": "Weight dtype",
                "weights_stochastic": "Weight dtype, stochastic rounding",
            },
        ),
    ] = "float32_stochastic"
    fused_reduce: Annotated[
        bool,
        advanced_setting(
            "Fused gradient reduce",
            "Sums the gradients of the GPUs while the backward pass continues, as soon as they are ready, instead of "
            "after it.",
            applies_when=_SHARED,
        ),
    ] = True
    async_reduce: Annotated[
        bool,
        advanced_setting(
            "Async gradient reduce",
            "The backward pass continues while gradients are transferred.",
            applies_when=_SHARED,
        ),
    ] = True
    async_reduce_buffer_mb: Annotated[
        int,
        *Interval(ge=1, le=65536),
        advanced_setting(
            "Async reduce buffer",
            "How much may be in transfer at a time.",
            unit="MB",
            applies_when=When("async_reduce", (True,)),
        ),
    ] = 100
