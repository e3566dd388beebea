"""Closed-form losses."""
