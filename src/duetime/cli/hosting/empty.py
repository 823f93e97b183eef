"""The App of a worker that has no code of its own: it serves stored targets."""

from __future__ import annotations

from duetime import App

app = App()
