"""One training run, step by step: load, fill the caches, build, train, end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from modules.adapters.protocol import Adapter
from modules.adapters.training_settings import max_norm_of
from modules.config.codec import export_file
from modules.config.schema import Config
from modules.config.usage import updates_in_backward
from modules.data.conditioning import complete_conditioning
from modules.data.plan_table import as_csv, plan_rows
from modules.optim.param_groups import TrainGroup, exact_parameters, fixed_tensors
from modules.optim.updates.weight_norms import RowNorms
from modules.settings.edit import replace_value
from modules.system.atomic import write_text
from modules.system.paths import from_root
from trainer.callbacks.saving import BackupCallback
from trainer.callbacks.side_output import SideOutput
from trainer.commands import CommandDesk, StopRequested
from trainer.data.loader import Loader
from trainer.dry_run import dry_run as try_every_branch
from trainer.events import RunFinished, WarningRaised
from trainer.launch import QuietPoints
from trainer.methods.build import build_method, require_process
from trainer.methods.protocol import StepContext, TrainingMethod
from trainer.ranks import ALONE, Ranks
from trainer.run.backups import Backups, split_state_of_rewards
from trainer.run.callbacks import RunCallbacks, build_callbacks, compilation_callbacks
from trainer.run.checkpoint import restore
from trainer.run.data import Loaders
from trainer.run.embeddings import kept_norms
from trainer.run.finish import PreparedRun, end, end_stopped, rescue
from trainer.run.loading import load_perceptual_of, load_reward_models_of, load_run
from trainer.run.model import LoadedModel
from trainer.run.moved_images import follow_moved_images
from trainer.run.open_folder import remove_unfinished_files
from trainer.run.placement import freed_memory, placed_copy
from trainer.run.recipe import start_recipe
from trainer.run.setup import RunSetup
from trainer.run.start import announce, original_of, restore_best, take_start_weights, take_weights
from trainer.run.stepper import build_stepper, step_graphs
from trainer.step.callback import Callback
from trainer.step.counters import Counters
from trainer.step.freezing import freeze_finished_units
from trainer.step.gradient_sums import Reduction
from trainer.step.loop import LoopOutcome, Training, run_loop
from trainer.step.meeting import Meeting
from trainer.step.pauses import Pauses
from trainer.step.precision import timed_kernels
from trainer.step.prediction_modes import prior_mode, rollout_mode
from trainer.step.stepper import Stepper

_MAX_IN_PLAN = 200_000  # images; the rows of more would take a minute and gigabytes


def carry_out(setup: RunSetup) -> None:
    """Carry out a complete training run. Raises DarkroomError for errors the user can fix."""
    is_main = setup.machine.ranks.rank.is_main
    if is_main:
        remove_unfinished_files(setup.run_dir, from_root(setup.config.output.destination), setup.log.emit)
        export_file(setup.config, setup.run_dir / "config.json")
    run = prepare(setup)
    training, callbacks = run.training, run.callbacks
    is_safe = True  # nothing is trained yet that could be lost
    try:
        _fill_folder(run)
        dry_run(run)
        is_safe = False
        if is_main:
            _at_start(run)
        with timed_kernels(
            setup.machine.train_device,
            num_sizes=len(setup.datasets.training.bucket_counts),
            deterministic=setup.config.general.deterministic,
        ):
            outcome = _loop(run)
        if is_main:
            with suppress(StopRequested):  # training is complete: a stop now only ends sampling
                callbacks.sampling.at_end(training.counters)
            end(run, outcome)
            run.meeting.release()
        else:
            run.meeting.serve()
            setup.log.emit(RunFinished(outcome, training.counters.step, ""))
        is_safe = True
    except StopRequested as stop:
        run.meeting.stop_others(stop)
        if not training.counters.step:
            is_safe = True
            raise
        if is_main:
            end_stopped(run)
            run.meeting.release()
        else:
            run.meeting.serve()
            setup.log.emit(RunFinished("stopped", training.counters.step, ""))
        is_safe = True
    except Exception as error:
        if not is_safe and not training.is_in_step:
            run.meeting.fail(error)
        raise
    finally:
        if not is_safe and is_main:
            rescue(run)
        run.close()


def _loop(run: PreparedRun) -> LoopOutcome:
    """Train, and report the pace and the memory of the steps, however it ends."""
    try:
        return run_loop(run.training)
    finally:
        if run.setup.machine.ranks.rank.is_main:
            run.callbacks.pace.report()


def report_images(setup: RunSetup) -> None:
    """Report on the images of a run with the weights of a backup; nothing is trained.

    Neither the optimizer's state nor a second set of weights for EMA is in memory: the averages of the backup are its
    weights. Raises DarkroomError, StopRequested.
    """
    config = replace_value(setup.config, "training.ema.mode", "off")
    run = prepare(replace(setup, config=config), for_report=True)
    counters, message, path = run.training.counters, "The images were compared.", ""
    try:
        if setup.machine.ranks.rank.is_main:
            written = run.callbacks.image_report.report(counters)
            run.meeting.release()
            if written is not None:
                message, path = written.summary, written.path
        else:
            run.meeting.serve()
    except StopRequested as stop:
        run.meeting.stop_others(stop)
        raise
    finally:
        run.close()
    setup.log.emit(RunFinished("reported", counters.step, message, path))


def _fill_folder(run: PreparedRun) -> None:
    """In the main process, write recipe, plan of the steps and best models of the backup into the folder of the run."""
    setup, loader = run.setup, run.training.loader
    if not setup.machine.ranks.rank.is_main:
        return
    start_recipe(setup, (loader.dataset, run.validation))
    if len(loader.dataset.examples) <= _MAX_IN_PLAN:
        rows = plan_rows(loader.dataset, loader.plans, loader.versions, epochs=setup.config.training.epochs)
        place = setup.run_dir / "plan.csv"
        with SideOutput("The plan of the steps", place, setup.log.emit).warn_on_failure():
            write_text(place, as_csv(rows))
    if setup.backup is not None:
        restore_best(setup, run.callbacks, setup.backup)


def _at_start(run: PreparedRun) -> None:
    """Sample, validate and measure rewards before the first step, as set."""
    counters, callbacks = run.training.counters, run.callbacks
    if counters.step == 0:
        callbacks.sampling.at_start(counters)
    callbacks.validation.at_start(counters)
    if callbacks.rewards is not None:
        callbacks.rewards.at_start(counters)


def prepare(setup: RunSetup, *, for_report: bool = False) -> PreparedRun:
    """Load the model, fill the caches, build the stepper and the callbacks, restore a backup, and announce the run.

    `for_report`: the run is only prepared for a report on its images, which compares a fine-tune to its start, too, and
    takes only the weights from the backup.
    """
    model, loaders = load_run(setup)
    reward_models = load_reward_models_of(setup)
    perceptual = load_perceptual_of(setup)
    method = build_method(setup.config.training, reward_models.followed if reward_models else perceptual)
    total_steps = loaders.training.plans.total_steps(setup.config.training.epochs)
    limit = max_norm_of(setup.config.adapter) if setup.config.training.trains == "adapter" else None
    norms = kept_norms(setup.config, model.embeddings, model.groups)
    stepper = _stepper(setup, model.groups, total_steps, adapters=model.adapters, max_norm=limit, norms=norms)
    meeting = Meeting(setup.machine.ranks, desk=setup.desk)
    callbacks = build_callbacks(setup, model, loaders, stepper, total_steps, reward_models, perceptual, meeting)
    backups = Backups(setup, model, stepper, method, loaders.training.plans.fingerprint, callbacks, meeting)
    training = _training(setup, model, loaders, stepper, method, callbacks, backups, meeting, for_report=for_report)
    backups.offer_step(training)
    if not model.sharded:  # a pause of a run that shards its model keeps the memory
        setup.desk.freed_memory = lambda: freed_memory(
            model.placement,
            model.groups,
            stepper,
            reward_modules=() if reward_models is None else reward_models.modules,
            emit=setup.log.emit,
        )
    announce(setup, training, model, loaders, total_steps)
    return PreparedRun(setup, model, training, callbacks, backups, meeting, loaders.validation.dataset, reward_models)


def dry_run(run: PreparedRun) -> None:
    """Try every enabled branch of a run once before its first step, without lasting effects.

    Raises BranchError, which names the branch and its reason, or StopRequested.
    """
    training, setup = run.training, run.setup
    total_steps = training.loader.plans.total_steps(training.epochs)
    alone = replace(setup, machine=replace(setup.machine, ranks=ALONE))  # each process tries it by itself
    check = setup.desk.check
    if run.model.sharded:  # then processes compute each pass together, so they stop together: before it and after it
        run.meeting.hold(ends_early=False)
        check = CommandDesk().check
    try_every_branch(training, lambda groups: _stepper(alone, groups, total_steps), check=check)


def _stepper(
    setup: RunSetup,
    groups: Sequence[TrainGroup],
    total_steps: int,
    *,
    adapters: Sequence[Adapter] = (),
    max_norm: float | None = None,
    norms: RowNorms | None = None,
) -> Stepper:
    return build_stepper(
        setup.config.training,
        groups,
        setup.machine,
        run_seed=setup.config.general.seed,
        total_steps=total_steps,
        is_fused=updates_in_backward(setup.config),
        adapters=adapters,
        max_norm=max_norm,
        kept_norms=norms,
        reduction=_reduction(setup.config),
    )


def _reduction(config: Config) -> Reduction:
    """Return how the processes of a run sum their gradients."""
    settings = config.multi_gpu
    return Reduction(
        starts_early=settings.fused_reduce,
        is_async=settings.async_reduce,
        most_bytes=settings.async_reduce_buffer_mb * 10**6,
        precision=settings.reduce_precision,
        run_seed=config.general.seed,
    )


def _training(
    setup: RunSetup,
    model: LoadedModel,
    loaders: Loaders,
    stepper: Stepper,
    method: TrainingMethod,
    callbacks: RunCallbacks,
    backups: Backups,
    meeting: Meeting,
    *,
    for_report: bool = False,
) -> Training:
    """Return the state of the training loop at the step where the run starts or resumes."""
    config = setup.config
    counters = setup.saved.counters if setup.saved else Counters()
    ranks = setup.machine.ranks
    # Several processes stop and pause together, between steps: at their meetings.
    pauses = Pauses(setup.desk if ranks.rank.is_alone else CommandDesk(), setup.clocks.seconds)
    source, family = loaders.training.conditioning, model.family
    context = StepContext(
        model.family,
        setup.machine.train_device,
        setup.machine.temp_device,
        config.general.seed,
        encode=lambda prompts: complete_conditioning(source.deliver(prompts), prompts, family),
        check=pauses.check,
        rollout=lambda step: rollout_mode(
            model.trained_modules,
            setup.machine.precision,
            run_seed=config.general.seed,
            step=step,
        ),
        prior=lambda: prior_mode(*original.differences(), model.trained_modules, setup.machine.precision),
        frozen_copy=lambda: placed_copy(family, model.groups, model.placement, name="reference"),
        reference=lambda copy: prior_mode((), (copy,), model.trained_modules, setup.machine.precision),
        emit=setup.log.emit,
        run_dir=setup.run_dir,
        ranks=ranks,
    )

    def freeze(now: Counters, when: str = "") -> None:
        for unit in freeze_finished_units(model.groups, stepper.optimizer, now.moment):
            message = f"Training of {unit.label} has stopped as set, {when or f'at step {now.step}'}."
            if ranks.rank.is_main:
                setup.log.emit(WarningRaised(message))

    has_start_weights = take_start_weights(setup, model, stepper)
    _share_weights(ranks, model)
    original = original_of(config, model, has_start_weights=has_start_weights)
    if for_report:
        callbacks.image_report.measure_start()
    if setup.backup and setup.saved:
        saved = follow_moved_images(
            setup.backup, setup.saved, config, training=loaders.training.plans, validation=loaders.validation.plans
        )
        if for_report:
            take_weights(setup.backup, model, stepper)
        else:
            restore(
                setup.backup.path, saved, groups=model.groups, stepper=stepper, method=method, sharded=model.sharded
            )
        callbacks.validation.search.load_state_dict(saved.validation)
        if callbacks.rewards is not None:
            of_search, of_guards = split_state_of_rewards(saved.rewards)
            callbacks.rewards.search.load_state_dict(of_search)
            callbacks.guards.load_state_dict(of_guards)
        counters = _fit_counters(setup, counters, loaders.training, saved.plan)
        _share_weights(ranks, model)
    freeze(counters, "before this point")  # the exact step is not known for a resumed run
    require_process(config.training, model.family.process)
    method.prepare(context)
    backup_callback = BackupCallback(
        config.backup.every,
        write=backups.write,
        try_out=backups.try_out,
        desk=setup.desk,
        output=SideOutput("A backup", setup.run_dir / "backup", setup.log.emit),
    )
    return Training(
        loader=loaders.training,
        method=method,
        context=context,
        precision=setup.machine.precision,
        stepper=stepper,
        groups=model.groups,
        reporters=(callbacks.metrics, callbacks.dropped, callbacks.pace) if ranks.rank.is_main else (),
        callbacks=_in_order(setup, model, loaders.training, callbacks, backup_callback, counters)
        if ranks.rank.is_main
        else (),
        between_steps=callbacks.profiling.between_steps if ranks.rank.is_main else lambda now: None,
        freeze=freeze,
        should_stop=lambda: (
            callbacks.should_stop if ranks.rank.is_alone else meeting.hold(ends_early=callbacks.should_stop)
        ),
        pauses=pauses,
        log=setup.log,
        clock=setup.clocks.seconds,
        epochs=config.training.epochs,
        max_consecutive_skipped_steps=config.training.max_consecutive_skipped_steps,
        quiet_points=QuietPoints(setup.clocks.seconds),
        position=counters,
        ranks=ranks,
        graphs=step_graphs(config, setup.machine, model, stepper, setup.log.emit),
    )


def _share_weights(ranks: Ranks, model: LoadedModel) -> None:
    """Copy the weights of the main process to all others, except those of sharded parts: each process has some rows."""
    whole = [g for g in model.groups if not g.is_sharded]
    ranks.copy_from_main([*exact_parameters(whole).values(), *fixed_tensors(whole).values()])
    for master_weight in (m for g in whole for m in g.master_weights.values() if not ranks.rank.is_alone):
        master_weight.write_back()


def _in_order(
    setup: RunSetup,
    model: LoadedModel,
    loader: Loader,
    callbacks: RunCallbacks,
    backup: BackupCallback,
    counters: Counters,
) -> tuple[Callback, ...]:
    """Return the callbacks in the order of their calls. The backup comes after those whose results it contains."""
    rewards = (callbacks.rewards, callbacks.guards) if callbacks.rewards is not None else ()
    return (
        *compilation_callbacks(setup, model.compilation, loader, counters),
        callbacks.validation,
        callbacks.image_report,
        *rewards,
        callbacks.sampling,
        callbacks.saving,
        backup,
    )


def _fit_counters(setup: RunSetup, counters: Counters, loader: Loader, plan: str) -> Counters:
    """Return counters that fit the current images, which may have changed since the backup."""
    if plan == loader.plans.fingerprint:
        return counters
    setup.log.emit(
        WarningRaised(
            "The images or captions have changed since the backup. The run continues with the current ones.",
            "The current epoch may use some images twice or not at all.",
        )
    )
    epoch_step = min(counters.epoch_step, loader.plans.num_steps(counters.epoch) - 1)
    # The accumulation group that the run stopped in has changed: it starts again.
    return counters.with_epoch_step(epoch_step - epoch_step % loader.plans.steps_per_group)
