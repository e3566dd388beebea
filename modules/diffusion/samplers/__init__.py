"""Samplers: how noise is taken out step by step."""
