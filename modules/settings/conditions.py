"""Conditions that settings of several sections share."""

from __future__ import annotations

from modules.settings.field import When

USES_DENOISER = When("training.trains", ("adapter", "full", "embedding"))
"""The run denoises: it does not train the VAE, which has no noise, no captions and no caches."""

EDITING = ("edit", "edit_one")
"""The model variants that get reference images."""
READS_REFERENCES = When("model.variant", EDITING)
"""The model edits reference images."""
