"""Nouns and mathematics: configs, families, data, noise, losses, adapters, formats."""
