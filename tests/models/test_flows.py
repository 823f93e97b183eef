"""The protocols of flows as models, walked in every order of events, and broken on purpose.

Three questions: does a join fire once and always, although arrivals are added up and members are retried meanwhile; does nothing of a flow
start once its cancel was acknowledged; does a signal meet who waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.models.exploring import Found, explore

# ---- a join ----


class Join(NamedTuple):
    """A node and what is on its way to it.

    Each member is `lives`, `ended` (its arrival is committed, it has not looked), `over` (it has looked), or has read what it will write:
    (version, ended, the arrivals that it read). `arrivals` are (number, amount) of committed rows; `ended` is what was added up of them.
    """

    members: tuple[object, ...]
    arrivals: frozenset[tuple[int, int]] = frozenset()
    next_arrival: int = 0
    ended: int = 0
    version: int = 0
    fired: int = 0
    retries: int = 1
    folds: int = 1
    died: bool = False


def join(members: int, broken: str = "", *, dies: bool = False, duty: bool = True) -> Found[Join]:
    """A member's end adds an arrival in its own transaction and looks afterwards; who finds all ended writes, if nobody else has written
    since the read. Anybody may add arrivals up. A member that ended may be retried while the node has not fired.
    """

    def total(state: Join) -> int:
        return state.ended + sum(amount for _, amount in state.arrivals)

    def write(state: Join, read: tuple[int, int, frozenset[tuple[int, int]]]) -> Join:
        version, ended, arrivals = read
        if version != state.version and broken != "no comparison":
            return state
        now_ended = ended + sum(amount for _, amount in arrivals)
        fires = now_ended == members and (not state.fired or broken == "no comparison")
        return state._replace(ended=now_ended, arrivals=state.arrivals - arrivals, version=state.version + 1, fired=state.fired + fires)

    def steps(state: Join) -> Iterator[tuple[str, Join]]:
        for index, member in enumerate(state.members):

            def become(what: object, state: Join = state, index: int = index) -> Join:
                return state._replace(members=(*state.members[:index], what, *state.members[index + 1 :]))

            match member:
                case "lives":
                    if broken == "look before the commit" and total(state) + 1 == members:
                        yield f"{index} looks and ends", become("over", _arrived(state, 1)._replace(fired=state.fired + 1))
                    elif broken == "look before the commit":
                        yield f"{index} looks", become("looked")
                    else:
                        yield f"{index} ends", become("ended", _arrived(state, 1))
                case "looked":
                    yield f"{index} ends after its look", become("over", _arrived(state, 1))
                case "ended":
                    yield f"{index} reads", become((state.version, state.ended, state.arrivals))
                    if dies:
                        yield f"{index} dies before its look", become("over", state._replace(died=True))
                case (int(version), int(ended), frozenset(arrivals)):
                    written = write(state, (version, ended, arrivals))
                    again = written is state  # somebody else has written: read again
                    yield f"{index} writes", become("ended" if again else "over", written)
                case "over" if state.retries and not state.fired:
                    changed = state.version if broken == "retry unseen" else state.version + 1
                    yield f"{index} is retried", become("lives", _arrived(state, -1)._replace(version=changed, retries=state.retries - 1))
        if state.folds and state.arrivals:
            changed = state.version if broken == "fold unseen" else state.version + 1
            yield "arrivals are added up", state._replace(ended=total(state), arrivals=frozenset(), version=changed, folds=state.folds - 1)
        if duty and not state.fired and total(state) == members:
            yield "the duty looks", write(state, (state.version, state.ended, state.arrivals))

    def wrong(state: Join) -> bool:
        early = state.fired and total(state) < members
        return bool(state.fired > 1 or early)

    return explore(Join(("lives",) * members), steps, wrong=wrong, unfinished=lambda state: not state.fired)


def _arrived(state: Join, amount: int) -> Join:
    return state._replace(arrivals=state.arrivals | {(state.next_arrival, amount)}, next_arrival=state.next_arrival + 1)


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("dies", [True, False])
def test_a_join_fires_once_and_always(members: int, dies: bool) -> None:
    found = join(members, dies=dies)
    assert (found.wrong, found.stuck) == (None, None)


def test_the_looks_alone_suffice_if_nobody_dies() -> None:
    found = join(3, duty=False)
    assert (found.wrong, found.stuck) == (None, None)


def test_without_the_duty_a_death_before_the_look_leaves_a_join_behind() -> None:
    found = join(2, dies=True, duty=False)
    assert any(event.endswith("dies before its look") for event in found.stuck or ())


@pytest.mark.parametrize("broken", ["no comparison", "fold unseen", "retry unseen", "look before the commit"])
def test_each_rule_of_the_join_is_needed(broken: str) -> None:
    found = join(3, broken, duty=False)
    assert found.wrong or found.stuck


# ---- cancel as one ----


class Cancelling(NamedTuple):
    """Members are in `due`, `claimed` or `marked` (they are told to stop), or gone. The lock of the flow is shared by claims."""

    due: int
    claimed: int = 0
    marked: int = 0
    claimer: tuple[str, bool] = ("idle", False)  # and the state of the flow that it read
    cancel: str = "asked"
    cancelled: bool = False
    acknowledged: bool = False
    late: int = 0  # claimed after the acknowledgement


def cancelling(broken: str = "") -> Found[Cancelling]:
    """A claim locks the flow in share mode until its commit, and hands nothing out of one that is cancelled. A cancel commits the state
    under the exclusive lock, then ends what waits and marks what runs, and is acknowledged after a sweep that began after that commit.
    """

    def steps(state: Cancelling) -> Iterator[tuple[str, Cancelling]]:
        doing, read = state.claimer
        if doing == "idle" and state.due and state.cancel != "committing":
            yield "a claim locks and reads", state._replace(claimer=("reads", state.cancelled))
        if doing == "reads" and read:
            yield "the claim ends it", state._replace(claimer=("idle", False), due=max(0, state.due - 1))
        elif doing == "reads":
            yield "the claim takes one, not committed", state._replace(claimer=("took", False), due=state.due - 1 if state.due else 0)
        if doing == "took":
            yield (
                "the claim commits",
                state._replace(claimer=("idle", False), claimed=state.claimed + 1, late=state.late + state.acknowledged),
            )
        shared = doing != "idle" and broken != "claims do not lock"
        if state.cancel == "asked" and not shared:
            yield "the cancel commits", state._replace(cancel="committed", cancelled=True)
        if broken == "sweep before the commit" and state.cancel == "asked":
            yield "it sweeps", state._replace(cancel="swept", due=0, marked=state.marked + state.claimed, claimed=0)
        if broken == "sweep before the commit" and state.cancel == "swept" and not shared:
            yield "it commits and is acknowledged", state._replace(cancel="over", cancelled=True, acknowledged=True)
        if state.cancel == "committed":
            yield (
                "it sweeps and is acknowledged",
                state._replace(cancel="over", due=0, marked=state.marked + state.claimed, claimed=0, acknowledged=True),
            )

    def wrong(state: Cancelling) -> bool:
        return state.late > 0 or (state.acknowledged and state.claimed > 0)

    return explore(Cancelling(due=2), steps, wrong=wrong, unfinished=lambda state: not state.acknowledged or state.due > 0)


def test_nothing_of_a_flow_starts_after_its_cancel_was_acknowledged() -> None:
    found = cancelling()
    assert (found.wrong, found.stuck) == (None, None)


@pytest.mark.parametrize("broken", ["claims do not lock", "sweep before the commit"])
def test_each_rule_of_the_cancel_is_needed(broken: str) -> None:
    assert cancelling(broken).wrong


# ---- signals ----


class Meeting(NamedTuple):
    """A sender and one who waits: each writes, commits and looks."""

    sender: str = "begins"
    waiter: str = "begins"
    sent: bool = False
    waits: bool = False
    woken: int = 0


def meeting(broken: str = "", *, dies: bool = False, duty: bool = True) -> Found[Meeting]:
    def meet(state: Meeting) -> Meeting:
        if state.sent and (state.waits or broken == "waiter kept"):
            return state._replace(woken=state.woken + 1, waits=broken == "waiter kept")
        return state

    def steps(state: Meeting) -> Iterator[tuple[str, Meeting]]:
        looks_first = broken == "look before the commit"
        match state.sender:
            case "begins":
                yield "the sender writes", state._replace(sender="looks" if looks_first else "commits")
            case "commits":
                yield "the sender commits", state._replace(sent=True, sender="over" if looks_first else "looks")
            case "looks":
                yield "the sender looks", meet(state)._replace(sender="commits" if looks_first else "over")
                if dies:
                    yield "the sender dies", state._replace(sender="over")
        match state.waiter:
            case "begins":
                yield "the other one writes", state._replace(waiter="looks" if looks_first else "commits")
            case "commits":
                yield "it waits", state._replace(waits=True, waiter="over" if looks_first else "looks")
            case "looks":
                yield "it looks", meet(state)._replace(waiter="commits" if looks_first else "over")
                if dies:
                    yield "it dies", state._replace(waiter="over")
        if duty and state.sent and state.waits:
            yield "the duty looks", meet(state)

    return explore(Meeting(), steps, wrong=lambda state: state.woken > 1, unfinished=lambda state: state.woken == 0)


@pytest.mark.parametrize("dies", [True, False])
def test_a_signal_meets_who_waits_for_it_once(dies: bool) -> None:
    found = meeting(dies=dies)
    assert (found.wrong, found.stuck) == (None, None)


def test_each_rule_of_signals_is_needed() -> None:
    assert meeting(duty=False).stuck is None, "the looks suffice if nobody dies"
    assert meeting(dies=True, duty=False).stuck, "the duty is needed if somebody dies"
    assert meeting("look before the commit", duty=False).stuck
    assert meeting("waiter kept", duty=False).wrong


# ---- rounds ----


class Rerun(NamedTuple):
    """A node with two members in each round. `lives` are the rounds of living members, `over` of those that have ended."""

    lives: tuple[int, ...] = (1, 1)
    over: tuple[int, ...] = ()
    round: int = 1
    arrivals: frozenset[tuple[int, int, int]] = frozenset()  # number, round, amount
    next_arrival: int = 0
    ended: int = 0
    counted_wrong: bool = False
    fired: frozenset[int] = frozenset()
    reruns: int = 1
    retries: int = 1
    judged: bool = False  # a rerun without the lock has read, and writes later


def rerun(broken: str = "") -> Found[Rerun]:
    """A rerun and a retry lock the flow. A rerun is refused while a member of the node lives; the next round has counts of its own, and
    arrivals say which round they are of. A member of an earlier round is not retried any more.
    """

    def arrive(state: Rerun, round: int, amount: int) -> Rerun:
        return state._replace(arrivals=state.arrivals | {(state.next_arrival, round, amount)}, next_arrival=state.next_arrival + 1)

    def begin(state: Rerun) -> Rerun:
        following = state.round + 1
        lives = (*state.lives, following, following)
        return state._replace(round=following, lives=lives, ended=0, reruns=state.reruns - 1, judged=False)

    def steps(state: Rerun) -> Iterator[tuple[str, Rerun]]:
        for round in sorted(set(state.lives)):
            lives = list(state.lives)
            lives.remove(round)
            yield f"one of round {round} ends", arrive(state._replace(lives=tuple(lives), over=(*state.over, round)), round, 1)
        for round in sorted(set(state.over)) if state.retries else ():
            if round == state.round or broken == "members of earlier rounds are retried":
                over = list(state.over)
                over.remove(round)
                again = state._replace(lives=(*state.lives, round), over=tuple(over), retries=state.retries - 1)
                yield f"one of round {round} is retried", arrive(again, round, -1)
        if state.arrivals:
            told_apart = broken != "rounds are not told apart"
            ended = state.ended + sum(amount for _, round, amount in state.arrivals if round == state.round or not told_apart)
            wrong = ended != state.over.count(state.round)
            fired = state.fired | {state.round} if ended == 2 else state.fired
            yield "a step counts", state._replace(arrivals=frozenset(), ended=ended, counted_wrong=wrong, fired=fired)
        idle = state.round not in state.lives or broken == "a living member does not hinder"
        if state.judged:
            yield "the rerun writes", begin(state)
        elif state.reruns and idle:
            yield "a rerun", state._replace(judged=True) if broken == "no lock" else begin(state)

    return explore(
        Rerun(),
        steps,
        wrong=lambda state: state.counted_wrong or len(set(state.lives)) > 1,
        unfinished=lambda state: state.round not in state.fired,
    )


def test_each_round_of_a_node_counts_for_itself() -> None:
    found = rerun()
    assert (found.wrong, found.stuck) == (None, None)


@pytest.mark.parametrize(
    "broken", ["rounds are not told apart", "a living member does not hinder", "members of earlier rounds are retried", "no lock"]
)
def test_each_rule_of_rounds_is_needed(broken: str) -> None:
    assert rerun(broken).wrong


# ---- a map ----


class Mapped(NamedTuple):
    """A node over a list of `length`, whose members are made one at a time by two processes. A maker is idle, or has read up to where."""

    length: int
    size: int | None = None
    made: tuple[int, ...] = ()
    cursor: int = 0
    ended: int = 0
    fired: int = 0
    makers: tuple[int | None, int | None] = (None, None)
    deaths: int = 1


def mapped(length: int, broken: str = "") -> Found[Mapped]:
    """The length is written first; each portion is written together with how far the making is, under the lock of the flow. The node is
    complete when as many have ended as the list is long.
    """

    def make(state: Mapped, position: int) -> Mapped:
        return state._replace(made=(*state.made, position), cursor=position + 1)

    def steps(state: Mapped) -> Iterator[tuple[str, Mapped]]:
        if state.size is None:
            yield "the length is written", state._replace(size=state.length)
            return
        for index, read in enumerate(state.makers):

            def holding(what: int | None, state: Mapped = state, index: int = index) -> Mapped:
                return state._replace(makers=(what, state.makers[1]) if index == 0 else (state.makers[0], what))

            if read is None and state.cursor < state.size:
                if broken == "no lock":
                    yield f"{index} reads", holding(state.cursor)
                elif broken == "the cursor alone":
                    yield f"{index} moves the cursor", holding(state.cursor, state._replace(cursor=state.cursor + 1))
                else:
                    yield f"{index} makes one", make(state, state.cursor)
            elif read is not None and broken == "the cursor alone":
                yield f"{index} makes one", holding(None, state._replace(made=(*state.made, read)))
                if state.deaths:
                    yield f"{index} dies", holding(None, state._replace(deaths=state.deaths - 1))
            elif read is not None:
                yield f"{index} makes one", holding(None, make(state, read))
        if state.ended < len(state.made):
            yield "one ends", state._replace(ended=state.ended + 1)
        awaited = len(state.made) if broken == "what was made is enough" else state.size
        if not state.fired and state.ended >= awaited and (state.made or broken != "an empty list is not complete"):
            yield "the node is complete", state._replace(fired=1)

    def wrong(state: Mapped) -> bool:
        return len(set(state.made)) < len(state.made) or bool(state.fired and state.ended < state.length)

    return explore(Mapped(length), steps, wrong=wrong, unfinished=lambda state: not state.fired)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_map_makes_each_member_once_and_completes(length: int) -> None:
    found = mapped(length)
    assert (found.wrong, found.stuck) == (None, None)


@pytest.mark.parametrize(
    ("broken", "length"), [("no lock", 2), ("the cursor alone", 2), ("what was made is enough", 2), ("an empty list is not complete", 0)]
)
def test_each_rule_of_the_map_is_needed(broken: str, length: int) -> None:
    found = mapped(length, broken)
    assert found.wrong or found.stuck
