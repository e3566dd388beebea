"""Adapters: small trainable layers, and where they attach."""
