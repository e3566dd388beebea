"""The editor of a concept: a window with a tab for each part of it."""
