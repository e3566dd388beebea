"""Where other programs on this machine keep their models, and what these are."""
