"""The widgets: customtkinter is used only here."""
