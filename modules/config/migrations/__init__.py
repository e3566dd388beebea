"""Migrations: one small pure function per version step, each total on any JSON object."""
