"""The remedies that change the config or the queue at once, as actions of the window."""

from __future__ import annotations

from functools import partial

from modules.system.factories import load_factory
from modules.system.problem import Problem, errors_in
from ui.features.queue.model import QueueControl
from ui.features.remote.model import Machines
from ui.forms.context import Context
from ui.widgets.actions import Action


def add_remedy_actions(context: Context) -> None:
    """Add the actions to the context's table."""
    context.actions.add(
        Action(
            "use_replacement",
            "Use the replacement of the base model",
            partial(_use_replacement, context),
            help="Set the repository that has the weights of one that was removed from Hugging Face",
        ),
        Action(
            "train_as_found",
            "Train the base model as what it is",
            partial(_train_as_found, context),
            help="Use the model family of the base model's file",
        ),
        Action(
            "use_variant",
            "Use the variant of the base model",
            partial(_use_variant, context),
            help="Use the model variant of the base model's file",
        ),
        Action(
            "use_attention",
            "Use an attention that works",
            partial(_use_attention, context),
            help="Set an attention that runs on the training device with what is installed",
        ),
        Action(
            "use_auto_device",
            "Set the training device to auto",
            partial(_use_auto_device, context),
            help="Train on the GPU, or on the CPU where there is none",
        ),
        Action(
            "add_to_queue",
            "Add this config to the queue",
            partial(_add_to_queue, context),
            help="Train it after the other runs",
        ),
        Action(
            "install_packages",
            "Install what the config lacks…",
            partial(_install_packages, context),
            help="Install the packages that the optimizer and the reward models need",
        ),
        Action(
            "space",
            "Free space…",
            lambda: load_factory("ui.features.space:SpaceWindow")(context),
            help="Delete old backups, caches, deleted runs and downloaded models, after a question",
        ),
    )


def _use_replacement(context: Context) -> None:
    name = context.form.config.model.base_model
    successor = load_factory("trainer.preflight.model_files:successor_of")(name)
    if successor:
        context.form.edit("model.base_model", successor)
        context.notify(f"The base model is now {successor}.")
    else:
        context.notify(f"No replacement of {name} is known.")


def _train_as_found(context: Context) -> None:
    config = context.form.config

    def change(family: str) -> None:
        if family:
            context.links.train_on(family, {"model.base_model": config.model.base_model})
        else:
            context.notify("The base model is not known to be of another family.")

    find = load_factory("trainer.preflight.model:other_family_of_files")
    context.pump.background.run(partial(find, config), change)


def _use_variant(context: Context) -> None:
    def change(variant: str) -> None:
        if variant:
            context.form.edit("model.variant", variant)
        else:
            context.notify("The variant of the base model is not known.")

    find = load_factory("trainer.preflight.model:variant_of_files")
    context.pump.background.run(partial(find, context.form.config), change)


def _use_attention(context: Context) -> None:
    config = context.form.config
    kind = load_factory("modules.system.hardware:here")().kind_of(config.general.train_device)
    working = load_factory("trainer.preflight.requirements:attentions_that_work")(config, kind)
    if working:
        context.form.edit("training.attention", working[0])
    else:
        context.notify("No attention is known to work on this device.")


def _use_auto_device(context: Context) -> None:
    context.form.edit("general.train_device", "auto")


def _install_packages(context: Context) -> None:
    find = load_factory("trainer.preflight.requirements:missing_packages")

    def install(packages: tuple[str, ...]) -> None:
        if packages:
            context.links.install_packages(packages, context.field_problems.check_again)
        else:
            context.notify("No package is missing.")

    context.pump.background.run(partial(find, context.form.config), install)


def _add_to_queue(context: Context) -> None:
    form = context.form
    if errors := errors_in(form.problems()):
        context.findings.show("Not added to the queue", errors, form.config)
        return
    source = context.starter.fork_from
    if source is not None and source.backup is not None:
        message = f"A fork that continues {source.run} from a backup cannot wait in the queue."
        advice = "Press Start once no other run is active, or fork from the weights alone."
        context.findings.show("Not added to the queue", [Problem("", message, advice=advice)], form.config)
        return
    machine = context.models.of(Machines).chosen
    context.models.of(QueueControl).add(form.source.name.lstrip("#"), form.config, machine=machine)
    context.navigation.open("queue")
