"""Glyphs and badges. Each state has a shape, a word and a colour of its own: nobody has to tell colours apart."""

from __future__ import annotations

from markupsafe import Markup, escape

from duetime.model.task import State

# paths on a grid of 16 × 16, drawn with strokes
GLYPHS = {
    "blocked": "M2.5 2.5h6v6h-6zM7.5 7.5h6v6h-6z",
    "pending": "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8M8 4.6V8l2.4 1.6",
    "running": "M4.5 2.8v10.4L13 8z",
    "succeeded": "M2.5 8.6l3.6 3.6 7.4-8",
    "failed": "M3.2 3.2l9.6 9.6M12.8 3.2l-9.6 9.6",
    "cancelled": "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8M4.8 8h6.4",
    "dropped": "M8 1.8v6.4M5.2 5.6L8 8.4l2.8-2.8M2.2 9.4v4.4h11.6V9.4",
    "expired": "M3.5 1.8h9M3.5 14.2h9M4.6 1.8c0 4 6.8 8.4 6.8 12.4M11.4 1.8c0 4-6.8 8.4-6.8 12.4",
    "skipped": "M2.5 8h3M7 8h2M10.5 8h3",
    "retrying": "M13.2 8A5.2 5.2 0 1 1 11 3.8M11.2 1.4v2.8H8.4M8 5.2V8l1.8 1.2",
    "cancelling": "M3.2 2.8v10.4L10.8 8zM13.2 2.8v10.4",
    "overview": "M2.2 8.6L8 2.8l5.8 5.8M4 7.2v6h8v-6",
    "tasks": "M5.6 3.6h8M5.6 8h8M5.6 12.4h8M2.2 3.6h.6M2.2 8h.6M2.2 12.4h.6",
    "failures": "M8 2L14.4 13.4H1.6zM8 6.2v3.4M8 11.4v.4",
    "schedules": "M2.4 3.6h11.2v10H2.4zM2.4 6.8h11.2M5.2 1.8v3M10.8 1.8v3",
    "handlers": "M6 2.6L2.4 8 6 13.4M10 2.6L13.6 8 10 13.4",
    "workers": "M2.4 2.6h11.2v4.2H2.4zM2.4 9.2h11.2v4.2H2.4zM5 4.7h.4M5 11.3h.4",
    "operations": "M2.4 11.8h11.2M2.4 8h7.2M2.4 4.2h9.6",
    "alerts": "M8 2a4 4 0 0 0-4 4v3.4L2.8 11.6h10.4L12 9.4V6a4 4 0 0 0-4-4M6.6 13.8h2.8",
    "flows": "M2 5.6h4v4.8H2zM10 1.8h4v4.4h-4zM10 9.8h4v4.4h-4zM6 8h2M8 4v8M8 4h2M8 12h2",
    "events": "M1.6 8h3l2-5 2.8 10 2-5h3",
    "bell": "M8 2.2a3.8 3.8 0 0 0-3.8 3.8c0 3.4-1.4 4.6-1.4 4.6h10.4s-1.4-1.2-1.4-4.6A3.8 3.8 0 0 0 8 2.2M6.7 13.2a1.4 1.4 0 0 0 2.6 0",
    "locks": "M3.4 7.2h9.2v6.6H3.4zM5.4 7.2V5a2.6 2.6 0 0 1 5.2 0v2.2",
    "limits": "M2 12.4a6 6 0 1 1 12 0M8 12.4l3-4.6",
    "audit": "M4 1.8h8v12.4H4zM6 5h4M6 8h4M6 11h2.4",
    "settings": "M2.4 4.4h5.2M11.2 4.4h2.4M7.6 2.8h3.6v3.2H7.6zM2.4 11.6h2.4M8.4 11.6h5.2M4.8 10h3.6v3.2H4.8z",
    "folder": "M1.8 12.8V3.6h4.4l1.6 2h6.4v7.2z",
    "more": "M3 8h.6M7.7 8h.6M12.4 8h.6",
    "search": "M7 2.4a4.6 4.6 0 1 0 0 9.2A4.6 4.6 0 0 0 7 2.4M10.4 10.4l3.4 3.4",
    "gate": "M2.4 13.6V3.2M13.6 13.6V3.2M2.4 5.4h11.2M2.4 9.4h11.2",
    "pause": "M5.4 3v10M10.6 3v10",
    "warning": "M8 2L14.4 13.4H1.6zM8 6.2v3.4M8 11.4v.4",
    "good": "M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8M5 8.2l2.2 2.2 4-4.6",
    "theme": "M8 1.8a6.2 6.2 0 1 0 0 12.4zM8 1.8a6.2 6.2 0 0 1 0 12.4",
    "copy": "M5.4 5.4h8.2v8.2H5.4zM2.4 10.6V2.4h8.2",
}


def glyph(name: str) -> Markup:
    """Draw a glyph; it says nothing to screen readers, so a word stands beside it."""
    return Markup('<svg class="glyph" viewBox="0 0 16 16" aria-hidden="true"><path d="{}"/></svg>').format(GLYPHS.get(name, GLYPHS["more"]))


def badge(state: str, *, cancelling: bool = False, tries: int = 0, allowed: int | None = None) -> Markup:
    """Draw the badge of a task's state, with how many tries it has used up while it waits for the next."""
    shape, word = state, escape(state)
    if state == State.RUNNING and cancelling:
        shape, word = "cancelling", escape("cancelling")
    elif state == State.PENDING and tries:
        shape = "retrying"
        word = escape(f"retrying {tries}/{allowed}" if allowed else f"retrying, {tries}")
    return Markup('<span class="badge {}">{}{}</span>').format(state, glyph(shape), word)


_OF_NODES = {"waiting": ("blocked", "pending")}  # the other states of nodes are states of tasks too


def node_badge(state: str) -> Markup:
    """Draw the badge of a node's state."""
    colour, shape = _OF_NODES.get(state, (state, state))
    return Markup('<span class="badge {}">{}{}</span>').format(colour, glyph(shape), state)


_OF_OPERATIONS = {
    "running": ("running", "running"),
    "paused": ("pending", "pause"),
    "done": ("succeeded", "succeeded"),
    "stopped": ("cancelled", "cancelled"),
    "failed": ("failed", "failed"),
}


def operation_badge(state: str) -> Markup:
    """Draw the badge of an operation's state, in the colour of the state of a task that means the same."""
    colour, shape = _OF_OPERATIONS[state]
    return Markup('<span class="badge {}">{}{}</span>').format(colour, glyph(shape), state)
