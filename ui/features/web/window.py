"""The window of the page in the browser: its switch, its address, and the address as a code for a phone."""

from __future__ import annotations

import io
import tkinter as tk
from collections.abc import Callable
from typing import cast

from modules.system.factories import load_factory
from ui.features.web.model import REACHES, Reach, WebPage
from ui.forms.context import Context
from ui.widgets.controls import Button, Choice
from ui.widgets.dialog import Window
from ui.widgets.panel import Panel, Text, WrappedText
from ui.widgets.theme import GAP, PAD
from ui.widgets.variables import TextVar

_ABOUT = (
    "What trains, its samples and curves, Stop and Pause, the queue, and choices between images: in a browser, also on "
    "a phone. The page ends when Darkroom is closed; runs that you start there continue."
)
_PEM = (("PEM", "*.pem *.crt *.key"),)
_CODE_PX, _QUIET_MODULES = 240, 4  # a code needs a light margin


class WebWindow(Window):
    """Switches the page on and off, and shows where it is."""

    is_single = True

    def __init__(
        self,
        context: Context,
        *,
        open_address: Callable[[str], object] = lambda address: load_factory("webbrowser:open")(address),
    ) -> None:
        super().__init__(context.root, context.theme, "Page in the browser")
        self.page = context.models.of(WebPage)
        self._context, self._open_address = context, open_address
        self._code: tk.PhotoImage | None = None
        pad, px = context.theme.px(PAD), context.theme.px
        WrappedText(self, context.theme, _ABOUT, colour="muted").pack(fill="x", padx=pad, pady=(pad, px(12)))
        self.reach = TextVar(master=self)
        self.choice = Choice(self, context.theme, self.reach, REACHES, on="window", command=self._switch, width=300)
        self.choice.pack(anchor="w", padx=pad)
        row = Panel(self, context.theme)
        row.pack(fill="x", padx=pad, pady=(px(GAP), 0))
        self.encrypt_button = Button(row, context.theme, "", self._change_certificate)
        self.encrypt_button.pack(side="left")
        self.encryption = Text(row, context.theme, colour="muted")
        self.encryption.pack(side="left", padx=(px(12), 0))
        footer = self.add_footer()
        self.open_button = Button(footer, context.theme, "Open in the browser", self._open, style="primary")
        self.open_button.pack(side="left")
        self.copy_button = Button(footer, context.theme, "Copy the address", self._copy)
        self.copy_button.pack(side="left", padx=(GAP, 0))
        self.address = Text(self, context.theme, role="heading")
        self.address.pack(anchor="w", padx=pad, pady=(px(16), px(4)))
        self.note = WrappedText(self, context.theme, colour="label")
        self.note.pack(fill="x", padx=pad)
        self.code = Text(self, context.theme)
        self.code.pack(padx=pad, pady=(px(14), 0))
        self.at_close(self.page.changed.subscribe(self._show))  # the page itself stays
        self._show()
        self.appear(560, 610)

    def _switch(self, reach: str) -> None:
        self.page.switch(cast("Reach", reach))

    def _change_certificate(self) -> None:
        """Ask for a certificate and its private key; one that is in use is no longer used."""
        interaction, folder = self._context.interaction, self._context.preferences.last_folder
        if self.page.certificate is not None:
            self.page.encrypt(None)
            return
        certificate = interaction.ask_file("Certificate for HTTPS", folder, _PEM)
        if certificate is not None:
            key = interaction.ask_file("Its private key (Cancel if the certificate's file has it)", folder, _PEM)
            self.page.encrypt(certificate, key)

    def _show(self) -> None:
        served, certificate = self.page.served, self.page.certificate
        self.encrypt_button.configure(text="Encrypt…" if certificate is None else "Do not encrypt")
        text = "Not encrypted in the network. Choose a certificate for HTTPS."
        self.encryption.set_text(text if certificate is None else f"Encrypted in the network, with {certificate.name}")
        self.reach.set(self.page.reach)
        self.address.set_text(served.url.partition("#")[0])
        self.note.recolour("error" if served.problem else "label")
        self.note.set_text(served.problem or served.note or ("Starting…" if self.page.is_starting else ""))
        for button in (self.open_button, self.copy_button):
            button.set_enabled(bool(served.url))
        self._code = self._code_of(served.url) if "#" in served.url else None
        self.code.configure(image=self._code or "")

    def _code_of(self, url: str) -> tk.PhotoImage:
        """Return an address as a QR code."""
        code = load_factory("segno:make")(url, micro=False)
        scale = max(2, self.theme.px(_CODE_PX) // (code.symbol_size(border=_QUIET_MODULES)[0]))
        png = io.BytesIO()
        code.save(png, kind="png", scale=scale, border=_QUIET_MODULES)
        return tk.PhotoImage(master=self, data=png.getvalue())

    def _open(self) -> None:
        self._open_address(self.page.served.url)

    def _copy(self) -> None:
        self.clipboard_clear()
        self.clipboard_append(self.page.served.url)
        self._context.notify("Copied the address. Whoever has it can use the page.")
