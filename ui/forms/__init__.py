"""The config in the window: its forms, the pages that show them, and what is known about it."""
