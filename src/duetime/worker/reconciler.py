"""The reconciler: compares what the store counts as a worker's with what the worker has; either side may have lost something."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from duetime.store.values import RunningAttempt


class Reconciler:
    """Judges only what two renewals in a row agree on, because a claim or a settle may be under way during one."""

    def __init__(self) -> None:
        self._suspected_strays: set[tuple[str, int]] = set()
        self._suspected_losses: set[tuple[str, int]] = set()

    def compare(
        self, counted: Iterable[RunningAttempt], ours: Mapping[str, int], settling: set[str], answered: int
    ) -> tuple[list[RunningAttempt], list[str]]:
        """Give the strays (claimed for us, but the reply never came: give them back) and the losses (we run them, but the
        store has taken them: stop them). `answered` is the newest claim whose reply has arrived.
        """
        by_id = {held.id: held for held in counted}
        strays = {
            (held.id, held.attempt)
            for held in by_id.values()
            if held.claim <= answered and ours.get(held.id) != held.attempt and held.id not in settling
        }
        losses = {(task, attempt) for task, attempt in ours.items() if (held := by_id.get(task)) is None or held.attempt != attempt}
        certain_strays = [by_id[task] for task, attempt in strays & self._suspected_strays]
        certain_losses = [task for task, _ in losses & self._suspected_losses]
        self._suspected_strays, self._suspected_losses = strays, losses
        return certain_strays, certain_losses
