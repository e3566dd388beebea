"""The questions before a run starts: about code and addresses, settings that a backup does not fit, and a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modules.config.schema import Config
from modules.system.problem import Problem, count
from ui.forms.changes import value_text
from ui.forms.findings import locate
from ui.forms.records import value_at
from ui.loop.interaction import Answer, Interaction

if TYPE_CHECKING:
    from trainer.run_folder.backup import BackupInfo


def ask_for_code(interaction: Interaction, config: Config) -> None:
    """Ask for approval of each file of user code; the check rejects unapproved ones."""
    from modules.rewards.user_code_file import approve
    from trainer.run.allowed_code import unapproved_code

    for code in unapproved_code(config):
        message = (
            f"The settings use the function {code.function} in {code.path} as a reward model. It runs "
            "with your user rights and can do anything you can. Read the file and approve it only if you trust it. "
            f"The approval is for the current version of the file (SHA-256 {code.digest})."
        )
        answers = (Answer("no", "Do not run", is_default=True), Answer("approve", "Approve this file"))
        if interaction.choose("Run this code?", message, answers, "warning") == "approve":
            approve(code.digest, code.path)


def ask_for_addresses(interaction: Interaction, config: Config) -> None:
    """Ask for approval of each other computer that images would be sent to; the check rejects unapproved ones."""
    from modules.rewards.user_code_file import approve
    from trainer.run.allowed_code import unapproved_addresses

    for address in unapproved_addresses(config):
        risk = "" if address.is_encrypted else " Anybody on the way can read them: the address is not encrypted."
        message = (
            f"The settings send the sampled images and their prompts to {address.host}, to be scored at {address}. "
            f"Approve the address only if you know who runs this server.{risk}"
        )
        answers = (Answer("no", "Do not send", is_default=True), Answer("approve", "Approve this address"))
        if interaction.choose("Send images there?", message, answers, "warning") == "approve":
            approve(address.digest, str(address))


_NO_EARLY_END = " Early stopping and the limits of the reward are switched off: they would end it again at once."


def ask_more_epochs(
    interaction: Interaction, backup: BackupInfo, epochs: int, result: str, *, stopped_early: bool
) -> str | None:
    """Return the number of epochs that a finished run shall train longer, as it was entered; None if cancelled."""
    question = (
        f"How many more epochs? The run had {count(epochs, 'epoch')}. It continues from its backup of step "
        f"{backup.step:,}, and replaces {result} when it finishes again."
        f"{_NO_EARLY_END if stopped_early else ''}"
    )
    answer = interaction.ask_text("Train longer", question, str(max(1, epochs // 2)))
    return None if answer is None else answer.strip()


def may_start_from_weights(
    interaction: Interaction, backup: BackupInfo, before: Config, now: Config, changed: Sequence[str]
) -> bool:
    """Return whether a run may start at step 0 from the weights of a backup, whose other state does not fit."""
    changes = describe_changes(before, now, changed)
    message = (
        f"These settings have changed: {changes}. The optimizer's state, the schedule and the order of images of "
        f"{backup.run_dir.name} do not fit them. The new run can start at step 0 from the weights of step "
        f"{backup.step:,}."
    )
    answers = (Answer("cancel", "Cancel"), Answer("weights", "Start from the weights", is_default=True))
    return interaction.choose("Start from the weights only?", message, answers) == "weights"


def may_restore(interaction: Interaction, before: Config, now: Config, changed: Sequence[str]) -> bool:
    """Return whether changed settings may go back to those that a run started with."""
    changes = describe_changes(before, now, changed)
    message = (
        f"These settings have changed since the run started: {changes}. A run resumes with the "
        "settings it started with. Epochs, learning rates, samples, backups and the output keep their current "
        "settings."
    )
    answers = (Answer("cancel", "Cancel"), Answer("restore", "Restore and resume", is_default=True))
    return interaction.choose("Resume with the run's settings?", message, answers) == "restore"


def keep_or_replace(interaction: Interaction, existing: Problem) -> str | None:
    """Ask what happens to the result of another run, or to another file, at the destination; None if cancelled."""
    answers = (
        Answer("cancel", "Cancel"),
        Answer("replace", "Replace it when the run finishes"),
        Answer("keep", "Keep both", is_default=True),
    )
    title = "Keep the earlier result?" if existing.severity == "info" else "Keep the other file?"
    choice = interaction.choose(title, existing.message, answers)
    return None if choice == "cancel" else choice


def describe_changes(before: Config, now: Config, paths: Sequence[str]) -> str:
    """Return the places of changed settings; another choice with both names: "Method (Denoising, now DPO)"."""
    places = []
    for path in paths:
        place, values = locate(Problem(path, ""), now).place, (value_text(before, path), value_text(now, path))
        is_choice = values[0] != values[1] and hasattr(value_at(now, path), "name")
        places.append(f"{place} ({values[0]}, now {values[1]})" if is_choice else place)
    return "; ".join(dict.fromkeys(places))
