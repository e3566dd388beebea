"""The widgets: everything that imports customtkinter."""

from ui.widgets.ctk_fonts import import_customtkinter

import_customtkinter()
