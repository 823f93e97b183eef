"""Tasks that were claimed before they are due come out at their instant, in the order of their due times."""

from duetime.clock import SECOND, Instant
from duetime.store.values import ClaimedTask
from duetime.worker.claimed_ahead import ClaimedAhead

NOW = 1_900_000_000 * SECOND


def task(name: str, due_at: Instant, handler: str = "work") -> ClaimedTask:
    return ClaimedTask(name, handler, "{}", 1, 0, 0, due_at, due_at, NOW, "", None, None, None, None, None, None, 5, None, None)


def names(tasks: object) -> list[str]:
    return [each.id for each in tasks]  # type: ignore[attr-defined]


def test_what_is_due_passes_through_as_it_came() -> None:
    tasks = [task("b", NOW), task("a", NOW - 1)]
    ahead = ClaimedAhead()
    assert ahead.filter_due(tasks, NOW) is tasks
    assert (len(ahead), ahead.first_at) == (0, None)


def test_what_is_not_due_waits_for_its_instant_to_the_microsecond() -> None:
    ahead = ClaimedAhead()
    given = ahead.filter_due([task("late", NOW + 9), task("due", NOW), task("soon", NOW + 3), task("too", NOW + 3)], NOW)
    assert names(given) == ["due"]
    assert ahead.first_at == NOW + 3
    assert ahead.take_due(NOW + 2) == []
    assert names(ahead.take_due(NOW + 3)) == ["soon", "too"]
    assert names(ahead.take_due(NOW + 8)) == []
    assert names(ahead.take_due(NOW + 9)) == ["late"]


def test_it_counts_by_handler_what_waits() -> None:
    ahead = ClaimedAhead()
    ahead.filter_due([task("a", NOW + 1), task("b", NOW + 2), task("c", NOW + 3, "other")], NOW)
    assert ahead.by_handler == {"work": 2, "other": 1}
    ahead.take_due(NOW + 1)
    assert ahead.by_handler["work"] == 1
    ahead.retain(lambda claimed: claimed.id != "b")
    assert (ahead.by_handler["work"], ahead.by_handler["other"], names(ahead)) == (0, 1, ["c"])
