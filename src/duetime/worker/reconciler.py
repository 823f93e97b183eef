"""The reconciler: compares what the store has of a worker with what the worker runs; either side may have lost something."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from duetime.store.values import RunningAttempt


class Reconciler:
    """Acts only on what two renewals in a row agree on, because a claim or a settle may be under way during one."""

    def __init__(self) -> None:
        self._suspected_strays: set[tuple[str, int]] = set()
        self._suspected_losses: set[tuple[str, int]] = set()

    def compare(
        self, counted: Iterable[RunningAttempt], ours: Mapping[str, int], settling: set[str], answered: int
    ) -> tuple[list[RunningAttempt], list[str]]:
        """Return strays and losses. A stray was claimed for this worker, but the reply never came: give it back. A loss runs here, but the
        store has taken it away: stop it. `answered` is the newest claim whose reply has arrived.
        """
        by_id = {known.id: known for known in counted}
        strays = {
            (known.id, known.attempt)
            for known in by_id.values()
            if known.claim <= answered and ours.get(known.id) != known.attempt and known.id not in settling
        }
        losses = {(task, attempt) for task, attempt in ours.items() if (known := by_id.get(task)) is None or known.attempt != attempt}
        certain_strays = [by_id[task] for task, attempt in strays & self._suspected_strays]
        certain_losses = [task for task, _ in losses & self._suspected_losses]
        self._suspected_strays, self._suspected_losses = strays, losses
        return certain_strays, certain_losses
