"""Loading the inputs of a run: its model, its images with their caches, and the models of its rewards or its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from modules.adapters.start import copies_in, lost_in
from modules.adapters.start_notes import OtherLayers
from modules.config.codec import load_file
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.config.usage import adapter_form, data_in_use, method_of, uses_perceptual_distance
from modules.formats.adapter_forms import FileForm
from modules.memory.compiled_blocks import Compilation
from modules.memory.placement import free_cached_memory
from modules.objectives.perceptual import PerceptualDistance
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import count
from modules.system.ranks import ONLY_RANK
from trainer import phases
from trainer.callbacks.image_sampler import ImageSampler
from trainer.callbacks.sampling import expand_wildcards
from trainer.data.shared_datasets import up_to_date_in_all
from trainer.events import PhaseChanged, WarningRaised
from trainer.methods.build import load_perceptual
from trainer.methods.measured_prompts import measured_prompts
from trainer.methods.reward_models import RewardModels, load_reward_models
from trainer.preflight.estimates import sizes_of
from trainer.preflight.ranks import sharded_parts
from trainer.preflight.room import parts_that_stay
from trainer.run.automatic_choices import checkpointed_blocks, measures_compiled_blocks, parts_with_channels_last
from trainer.run.data import Loaders, build_loaders, caches_of
from trainer.run.model import LoadedModel, load_model
from trainer.run.processes import require_equal_images, shard
from trainer.run.setup import RunSetup
from trainer.run_folder.backup import BackupInfo
from trainer.run_folder.run_dir import start_copy_in


def load_run(setup: RunSetup) -> tuple[LoadedModel, Loaders]:
    """Load the model, fill the caches, and move the parts to their devices for training."""
    config, machine, log = setup.config, setup.machine, setup.log
    log.emit(PhaseChanged("loading", config.model.base_model))
    meter = setup.download_meter()
    measures = measures_compiled_blocks(config, machine.train_device, machine.ranks.rank.world_size)
    compilation = compilation_of(config, setup.clocks.seconds, measures=measures)
    channels_last, blocks = parts_with_channels_last(setup), checkpointed_blocks(setup)
    ranks, is_local = machine.ranks, from_root(config.model.base_model).exists()
    if not is_local and not ranks.rank.is_main:
        ranks.from_main(None)  # the main process downloads the model first
    # Of a new run only the main process writes the copy of the file that it starts from; the others read that file.
    start_copy = start_copy_in(setup.run_dir) if machine.ranks.rank.is_main or setup.backup is not None else None
    may_stay = parts_that_stay(
        config,
        sizes_of(setup.datasets.training, setup.datasets.validation),
        free_bytes=machine.free_device_bytes,
        blocks=blocks,
        start_copy=start_copy,
    )
    filling = _CacheFiller(setup, is_local=is_local)
    model = load_model(
        _with_seed_of(config, setup.start_weights),
        machine,
        meter,
        start_copy=start_copy,
        compilation=compilation,
        may_stay=may_stay,
        checkpointed_blocks=blocks,
        channels_last=channels_last,
        before_denoiser=filling.fill_first,
    )
    loaders = filling.loaders or filling.fill(model)
    if setup.backup is None:
        _report_start(setup, model)
    setup.desk.check()
    free_cached_memory(machine.train_device)
    names = sharded_parts(config, ranks.rank.world_size)
    model = shard(model, names, device=machine.train_device, num_processes=ranks.rank.world_size)
    model.placement.enter(phases.TRAIN)
    return model, loaders


@dataclass(eq=False)
class _CacheFiller:
    """Fills the caches of a run: before its denoiser is read, if the text encoders leave the memory, or with it."""

    setup: RunSetup
    is_local: bool
    loaders: Loaders | None = None

    def fill_first(self, model: LoadedModel) -> None:
        """Fill the caches with a model that lacks its denoiser, and encode the prompts of the samples."""
        loaders = self.loaders = self.fill(model)
        setup, machine = self.setup, self.setup.machine
        prompts = prompts_of(setup.config, loaders)
        if prompts:
            setup.log.emit(PhaseChanged("caching", "encoding the prompts of samples"))
            device, precision = machine.train_device, machine.precision
            ImageSampler(model.family, model.placement, device, precision, encoded=model.encoded).conditionings(prompts)
        free_cached_memory(machine.train_device)
        setup.log.emit(PhaseChanged("loading", setup.config.model.base_model))

    def fill(self, model: LoadedModel) -> Loaders:
        """Fill the caches and return the loaders. Raises DarkroomError if no image is left."""
        setup, config, machine, log = self.setup, self.setup.config, self.setup.machine, self.setup.log
        ranks = machine.ranks
        if not self.is_local and ranks.rank.is_main:
            ranks.from_main(None)
        setup.desk.check()
        data = data_in_use(config)
        caches = caches_of(data, config.general.cache_dir, model, machine, setup.desk, log.emit)
        datasets = up_to_date_in_all(  # loading a model can take long
            setup.datasets, ranks, config, log.emit, setup.desk.check
        )
        in_step = bool(sharded_parts(config, ranks.rank.world_size))
        # A method that splits batches shares out its own micro-batches.
        rank = ONLY_RANK if method_of(config).splits_batches else ranks.rank
        loaders = build_loaders(data, config.masks, datasets, model, machine, caches, rank=rank, in_step=in_step)
        require_equal_images(ranks, loaders.training, loaders.validation)
        if loaders.training.plans.total_steps(config.training.epochs) == 0:
            raise DarkroomError(
                "No image is left to train on.", advice="See the warnings: they name the files that were left out."
            )
        return loaders


def prompts_of(config: Config, loaders: Loaders) -> list[SamplePrompt]:
    """Return the prompts of all images that a run samples without a request, with their wildcards replaced."""
    sampling = config.sampling
    is_off = sampling.every.is_never and not sampling.at_start and not sampling.at_end
    prompts = [] if is_off else [expand_wildcards(sampling, p) for p in sampling.prompts if p.enabled]
    if not method_of(config).needs_reward_models:
        return prompts
    return [*prompts, *measured_prompts(config, loaders.validation.dataset, loaders.training.dataset)]


def compilation_of(config: Config, clock: Callable[[], float], *, measures: bool = False) -> Compilation | None:
    """Return the compilation of the blocks of a run's denoiser; None if they are not compiled.

    It is off at first if the run `measures` whether it is faster.

    Debug checks switch it off: the guard must see every operation, and torch compiles nothing that is observed like
    that. `modules/config/rules/training.py` warns of it.
    """
    if config.general.debug_checks or not (measures or config.model.compile == "on"):
        return None
    compilation = Compilation(clock)
    if measures:
        compilation.turn_off()
    return compilation


def _with_seed_of(config: Config, start_weights: BackupInfo | None) -> Config:
    """Return a config with the seed of the run whose weights a new run starts from.

    The fixed tensors that those weights were trained with follow from that seed (`restore_fixed`), and the weights that
    it draws are replaced.
    """
    if start_weights is None:
        return config
    seed = load_file(start_weights.path / "config.json").config.general.seed
    return config.model_copy(update={"general": config.general.model_copy(update={"seed": seed})})


def _report_start(setup: RunSetup, model: LoadedModel) -> None:
    """Report the layers in the start file of a new run that the run does not train."""
    message, advice = _note_of_start(model, adapter_form(setup.config))
    if message:
        setup.log.emit(WarningRaised(message, advice))


def _note_of_start(model: LoadedModel, form: FileForm) -> tuple[str, str]:
    """Return a message about layers of the file that the run does not train, and an advice; both empty without any."""
    start = model.start
    if start is None:
        return "", ""
    paths: dict[str, tuple[str, ...]] = {}
    for layer in (*start.kept, *start.left_out):
        label = model.family.parts[layer.part].spec.label
        paths[label] = (*paths.get(label, ()), layer.path.removeprefix("text_model."))  # as preflight names it
    copies = copies_in(start, model.family.lora_naming)
    others = OtherLayers(
        start.where,
        is_kept=not (start.left_out or start.left_out_others),
        trains_any=any(start.trained.values()),
        paths=paths,
        inactive=tuple(f"{layer.part}.{layer.path}" for layer in start.inactive),
        others=tuple(name for name in (*start.others, *start.left_out_others) if name not in copies),
        lost=tuple(name for name in lost_in(start, form) if name not in copies),
        copies=tuple(copies),
    )
    message, advice = others.note()
    if start.num_folded:
        folded = (
            f"{count(start.num_folded, 'layer')} of {start.where} are Tucker decompositions. They are trained as plain "
            "LoRA, with the same product."
        )
        message = f"{message} {folded}".strip()
    return message, advice


def load_reward_models_of(setup: RunSetup) -> RewardModels | None:
    """Load the reward models if the method needs them; after the caches are filled, because those need the memory."""
    config = setup.config
    if not method_of(config).needs_reward_models:
        return None
    setup.log.emit(PhaseChanged("loading", "the reward models"))
    return load_reward_models(
        config,
        train_device=setup.machine.train_device,
        temp_device=setup.machine.temp_device,
        approved_hashes=setup.approved_code,
        on_bytes=setup.download_meter(),
        check=setup.desk.check,
        warn=lambda message, advice: setup.log.emit(WarningRaised(message, advice)),
    )


def load_perceptual_of(setup: RunSetup) -> PerceptualDistance | None:
    """Load the perceptual distance of a VAE's loss, if it is used."""
    if not uses_perceptual_distance(setup.config):
        return None
    setup.log.emit(PhaseChanged("loading", "the perceptual distance"))
    return load_perceptual(setup.config, setup.machine.train_device, setup.download_meter())
