"""Tasks that were claimed before they are due come out at their instant, in the order of their due times."""

from duetime.clock import SECOND, Instant
from duetime.store.protocol import ClaimedTask
from duetime.worker.early import Early

NOW = 1_900_000_000 * SECOND


def task(name: str, due_at: Instant, handler: str = "work") -> ClaimedTask:
    return ClaimedTask(name, handler, "{}", 1, 0, 0, due_at, due_at, NOW, "", None, None, None, None, None, None, 5, None, None)


def names(tasks: object) -> list[str]:
    return [each.id for each in tasks]  # type: ignore[attr-defined]


def test_what_is_due_passes_through_as_it_came() -> None:
    tasks = [task("b", NOW), task("a", NOW - 1)]
    early = Early()
    assert early.sift(tasks, NOW) is tasks
    assert (len(early), early.first_at) == (0, None)


def test_what_is_not_due_waits_for_its_instant_to_the_microsecond() -> None:
    early = Early()
    given = early.sift([task("late", NOW + 9), task("due", NOW), task("soon", NOW + 3), task("too", NOW + 3)], NOW)
    assert names(given) == ["due"]
    assert early.first_at == NOW + 3
    assert early.ripe(NOW + 2) == []
    assert names(early.ripe(NOW + 3)) == ["soon", "too"]
    assert names(early.ripe(NOW + 8)) == []
    assert names(early.ripe(NOW + 9)) == ["late"]


def test_it_counts_by_handler_what_waits() -> None:
    early = Early()
    early.sift([task("a", NOW + 1), task("b", NOW + 2), task("c", NOW + 3, "other")], NOW)
    assert early.by_handler == {"work": 2, "other": 1}
    early.ripe(NOW + 1)
    assert early.by_handler["work"] == 1
    early.keep(lambda claimed: claimed.id != "b")
    assert (early.by_handler["work"], early.by_handler["other"], names(early)) == (0, 1, ["c"])
