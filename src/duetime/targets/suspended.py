"""How a step that waits leaves the handler's code."""

from __future__ import annotations

from duetime.model.steps import Suspension


class Suspended(BaseException):
    """Leaves the handler's code because a step waits. Not an Exception: handlers rarely catch it, and must not."""

    def __init__(self, suspension: Suspension) -> None:
        super().__init__(f"step {suspension.name!r} waits; the handler goes on from there in another attempt")
        self.suspension = suspension


def suspension_of(error: BaseException) -> Suspension | None:
    """Return what an exception waits for, also if a task group has put it beside others that only wait; None if anything has failed."""
    if isinstance(error, Suspended):
        return error.suspension
    if isinstance(error, BaseExceptionGroup):
        found = [suspension_of(each) for each in error.exceptions]
        return None if None in found else found[0]
    return None
