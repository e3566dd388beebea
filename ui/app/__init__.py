"""The window: its bars, the catalogue of pages, the actions and their shortcuts, the session."""
