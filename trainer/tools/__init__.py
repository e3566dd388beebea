"""Tools for model and adapter files, as the command line and the window use them."""
