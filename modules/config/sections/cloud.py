"""Training on a rented or own machine elsewhere. How to reach it is kept with the secrets, never in a config."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from modules.settings.field import Section, Setting, When

_AWAY = When("enabled", (True,))
_RENTED = When("create", (True,))
_ENDINGS = {"none": "Leave it running", "stop": "Stop it", "delete": "Delete it"}

Ending = Literal["none", "stop", "delete"]


class Cloud(Section):
    """Which machine, what it is given, what is fetched back, and what becomes of it."""

    enabled: Annotated[
        bool,
        Setting(
            "Train in a cloud",
            "The run goes to another machine, and what it makes comes back.",
            group="Cloud",
            level="advanced",
            not_yet="refused",
        ),
    ] = False
    kind: Annotated[
        Literal["runpod", "linux"],
        Setting(
            "Kind of machine",
            "One that is rented by the hour, or any Linux machine that answers to SSH.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
            choice_labels={"runpod": "RunPod", "linux": "Own Linux machine"},
        ),
    ] = "runpod"
    file_sync: Annotated[
        Literal["scp", "sftp"],
        Setting(
            "Files travel by",
            "SCP is the faster one; SFTP needs nothing installed.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
            choice_labels={"scp": "SCP", "sftp": "SFTP"},
        ),
    ] = "scp"
    remote_dir: Annotated[
        str,
        Setting("Folder there", "Where everything goes.", group="Cloud", level="advanced", applies_when=_AWAY),
    ] = "/workspace"
    program_dir: Annotated[
        str,
        Setting(
            "Program's folder there",
            "Where the trainer is installed.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
        ),
    ] = "/workspace/OneTrainer"
    hub_cache_dir: Annotated[
        str,
        Setting(
            "Download folder there",
            "Where downloaded models are kept.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
        ),
    ] = "/workspace/huggingface_cache"
    install: Annotated[
        bool,
        Setting(
            "Install the program",
            "Puts the trainer there where it is missing.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
        ),
    ] = True
    install_command: Annotated[
        str,
        Setting(
            "Install command",
            "What is run there to install it.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
            empty_means="the usual one",
        ),
    ] = ""
    update: Annotated[
        bool,
        Setting(
            "Update the program",
            "Brings the trainer there up to date first.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
        ),
    ] = True
    tensorboard_tunnel: Annotated[
        bool,
        Setting(
            "TensorBoard from there",
            "Shows its TensorBoard here.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
        ),
    ] = True
    detach: Annotated[
        bool,
        Setting(
            "Go on without this machine",
            "The run there goes on when the connection ends, and can be taken up again.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
        ),
    ] = False
    run_id: Annotated[
        str,
        Setting(
            "Name to find it by",
            "What a run that goes on alone is found by.",
            group="Cloud",
            level="advanced",
            applies_when=_AWAY,
        ),
    ] = "job1"
    create: Annotated[
        bool,
        Setting(
            "Rent a machine",
            "Rents one for the run when none is named.",
            group="Rented machine",
            level="advanced",
            applies_when=_AWAY,
        ),
    ] = False
    name: Annotated[
        str,
        Setting(
            "Name",
            "What the rented machine is called.",
            group="Rented machine",
            level="advanced",
            applies_when=_RENTED,
        ),
    ] = "OneTrainer"
    offer: Annotated[
        str,
        Setting(
            "Offer",
            "Which of the provider's kinds of cloud.",
            group="Rented machine",
            level="advanced",
            applies_when=_RENTED,
            empty_means="any",
        ),
    ] = ""
    gpu: Annotated[
        str,
        Setting(
            "GPU",
            "Its name as the provider writes it.",
            group="Rented machine",
            level="advanced",
            applies_when=_RENTED,
            empty_means="any",
        ),
    ] = ""
    volume_gb: Annotated[
        int,
        Ge(0),
        Le(100_000),
        Setting(
            "Disk",
            "How large a disk it has.",
            unit="GB",
            group="Rented machine",
            level="advanced",
            applies_when=_RENTED,
        ),
    ] = 100
    min_download_mbps: Annotated[
        float,
        Ge(0),
        Le(1_000_000),
        Setting(
            "Network at least",
            "How fast it must fetch files.",
            unit="Mbit/s",
            group="Rented machine",
            level="advanced",
            applies_when=_RENTED,
        ),
    ] = 0.0
    download_samples: Annotated[
        bool,
        Setting("Samples", "Fetches samples.", group="Fetched back", level="advanced", applies_when=_AWAY),
    ] = True
    download_output: Annotated[
        bool,
        Setting("Result", "Fetches the result.", group="Fetched back", level="advanced", applies_when=_AWAY),
    ] = True
    download_saves: Annotated[
        bool,
        Setting(
            "Saved models", "Fetches what is saved on the way.", group="Fetched back", level="advanced",
            applies_when=_AWAY,
        ),
    ] = True  # fmt: skip
    download_backups: Annotated[
        bool,
        Setting("Backups", "Fetches backups.", group="Fetched back", level="advanced", applies_when=_AWAY),
    ] = False
    download_tensorboard: Annotated[
        bool,
        Setting("TensorBoard logs", "Fetches the logs.", group="Fetched back", level="advanced", applies_when=_AWAY),
    ] = False
    delete_workspace: Annotated[
        bool,
        Setting(
            "Clear up there",
            "Deletes the run's folder there once everything is fetched.",
            group="Fetched back",
            level="advanced",
            applies_when=_AWAY,
        ),
    ] = False
    on_finish: Annotated[
        Ending,
        Setting(
            "When it is done", "What becomes of the machine.", group="At the end", level="advanced",
            applies_when=_AWAY, choice_labels=_ENDINGS,
        ),
    ] = "none"  # fmt: skip
    on_error: Annotated[
        Ending,
        Setting(
            "When it fails", "What becomes of the machine.", group="At the end", level="advanced",
            applies_when=_AWAY, choice_labels=_ENDINGS,
        ),
    ] = "none"  # fmt: skip
    on_detached_finish: Annotated[
        Ending,
        Setting(
            "When it is done alone", "The same for a run that went on without this machine.", group="At the end",
            level="advanced", applies_when=When("detach", (True,)), choice_labels=_ENDINGS,
        ),
    ] = "none"  # fmt: skip
    on_detached_error: Annotated[
        Ending,
        Setting(
            "When it fails alone", "The same for a run that went on without this machine.", group="At the end",
            level="advanced", applies_when=When("detach", (True,)), choice_labels=_ENDINGS,
        ),
    ] = "none"  # fmt: skip
