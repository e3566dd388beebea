"""Verbs and time: runs, steps, schedules, backups, events."""
