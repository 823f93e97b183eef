"""The target of `duetime.notify`, as it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from duetime.targets.host import TargetHost
    from duetime.targets.spec import HandlerSpec
    from duetime.targets.target import Target


class NoticeSpec(msgspec.Struct, frozen=True):
    """Attempts that send notices of alerts."""

    @property
    def kind(self) -> str:
        return "notices"

    def open(self, handler: HandlerSpec, host: TargetHost) -> Target:
        from duetime.targets.notices.target import NoticeTarget  # not before a worker needs it

        return NoticeTarget(handler, host)
