"""How the settings of Muon and of the optimizers based on it divide the weights between Muon and its auxiliary Adam."""

from __future__ import annotations

from typing import Protocol

from modules.system.patterns import compiled_pattern

# Parts of the names of hidden layers in every model so far: blocks of a UNet, numbered layers of a text encoder.
HIDDEN_LAYERS = ("block", "layers.")


class MuonFields(Protocol):
    """The settings that divide weights between Muon and its auxiliary Adam."""

    @property
    def muon_with_aux_adam(self) -> bool: ...
    @property
    def muon_hidden_layers(self) -> str: ...
    @property
    def muon_adam_regex(self) -> bool: ...
    @property
    def muon_adam_lr(self) -> float: ...
    @property
    def muon_te1_adam_lr(self) -> float | None: ...
    @property
    def muon_te2_adam_lr(self) -> float | None: ...


def hidden_entries(settings: MuonFields) -> tuple[str, ...]:
    """Return the entries of the filter for Muon's layers: parts of names, or regular expressions."""
    given = tuple(entry for part in settings.muon_hidden_layers.split(",") if (entry := part.strip()))
    return given or HIDDEN_LAYERS


def is_hidden(name: str, settings: MuonFields) -> bool:
    """Return whether the filter matches the full name of a weight."""
    entries = hidden_entries(settings)
    if settings.muon_adam_regex and settings.muon_hidden_layers.strip():
        return any(compiled_pattern(entry).is_in(name) for entry in entries)
    return any(entry in name for entry in entries)


def adam_rate(part: str, settings: MuonFields) -> float:
    """Return the learning rate of the auxiliary Adam for a part of the model."""
    rate = {"text_encoder": settings.muon_te1_adam_lr, "text_encoder_2": settings.muon_te2_adam_lr}.get(part)
    return settings.muon_adam_lr if rate is None else rate
