"""Tasks with steps, signals, and submissions that are merged, in simulated worlds: what clients ask for and what handlers do.

What handlers note is read by `stories_checker` at the end.
"""

import asyncio
import random
from typing import Any, Literal, NamedTuple

import msgspec

from duetime import Context, Fatal, Handlers, RetryPolicy, StoreUnavailable, TaskCancelled, TaskFailed
from duetime.model.steps import child_id
from duetime.testing.simulation.faults import CLIENT, Fault, Kind
from tests.simulation.journal import attempt, journal
from tests.simulation.workload import Operation

TRIES = 3
SLOTS = {"story": 4, "called": 3, "merged": 3, "kept": 3}
RESERVE = {9: 1}  # of the slots of `kept`
VERBS = ("save_steps", "save_steps", "steps", "add", "get", "settle", "claim", "look_at_waits")
ASKED = ("send_signals", "send_signals", "add", "add")
KINDS: tuple[Kind, ...] = ("crash", "crash", "kill", "lose", "lose", "fail", "slow")
THROTTLE = 2.0
MERGING: dict[str, dict[str, Any]] = {
    "queued": {"if_exists": "queue_one"},
    "quiet": {"debounce": 0.6},
    "bounded": {"debounce": 0.6, "max_wait": 1.0},
    "throttled": {"throttle": THROTTLE},
}

Do = Literal["step", "sleep", "wait", "call"]


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a story. `seconds`: for how long it works, sleeps, or waits at most; `signal`: what it waits for; `children`: how many,
    each due `later` seconds from then.
    """

    do: Do
    seconds: float = 0.0
    how: str = "works"
    signal: str = ""
    children: int = 0
    later: float = 0.0


class Step(NamedTuple):
    """A step of a task."""

    task: str
    name: str


# ---- before a world begins ----


def faults(chance: random.Random, *, workers: int, seconds: float, most: int) -> list[Fault]:
    """Return more faults, at the verbs of steps and signals."""
    more = []
    for _ in range(chance.randint(0, most)):
        asked = chance.random() < 0.35
        kind = chance.choice((*KINDS, "lose", "lose") if asked else KINDS)
        more.append(
            Fault(
                kind=kind,
                at=round(chance.uniform(0.0, seconds), 3),
                process=CLIENT if asked else chance.randrange(workers),
                verb=chance.choice(ASKED if asked else VERBS),
                seconds=chance.choice((0.3, 2.0)) if kind == "slow" else 0.0,
            )
        )
    return more


def operations(chance: random.Random, *, seconds: float, most: int) -> list[Operation]:
    """Return operations for so many seconds."""
    number = chance.randint(3, max(8, most // 2))
    return [
        operation
        for each in range(number)
        for operation in (
            _burst(chance, seconds) if chance.random() < 0.06 else [_one(chance, round(chance.uniform(0.0, seconds), 3), each)]
        )
    ]


def _burst(chance: random.Random, seconds: float) -> list[Operation]:
    """Return submissions that want more slots than there are for their priority."""
    at = chance.uniform(0.0, seconds)
    return [
        Operation(
            kind="submit",
            at=round(at + 0.01 * each, 3),
            handler="kept",
            payload={"seconds": chance.choice((0.3, 1.0))},
            options={"priority": chance.choice((0, 4, 4, 9))},
        )
        for each in range(6)
    ]


def _one(chance: random.Random, at: float, number: int) -> Operation:
    payload: dict[str, Any]
    match chance.choice((*("story",) * 6, *("signal",) * 6, *("merged",) * 6, "cancel")):
        case "story":
            payload = {"parts": [msgspec.to_builtins(_part(chance)) for _ in range(chance.choice((1, 2, 2, 4)))]}
            options: dict[str, Any] = {"expires": 6.0} if chance.random() < 0.1 else {}
            if chance.random() < 0.2:
                options |= {"key": f"story {chance.randrange(2)}", "if_exists": chance.choice(("keep", "replace"))}
            return Operation(kind="submit", at=at, handler="story", payload=payload, options=options)
        case "signal":
            id = f"id {chance.randrange(2)}" if chance.random() < 0.3 else f"id of {number}"
            kept = 1.0 if chance.random() < 0.1 and id == f"id of {number}" else None
            payload = {"name": _signal(chance), "id": id, "value": f"value {number}", "keep": kept}
            return Operation(kind="signal", at=at, payload=payload)
        case "merged":
            how = chance.choice(tuple(MERGING))
            payload = {"number": number, "seconds": chance.choice((0.0, 0.3, 1.0))}
            return Operation(
                kind="merge", at=at, handler="merged", payload=payload, options={"key": f"{how} {chance.randrange(2)}", **MERGING[how]}
            )
        case _:
            return Operation(kind="cancel", at=at, pick=chance.random())


def _signal(chance: random.Random) -> str:
    return chance.choice(("paid", "paid", "approved"))


def _part(chance: random.Random) -> Part:
    match chance.choice(("step", "step", "sleep", "wait", "wait", "call")):
        case "step":
            return Part(
                "step", seconds=chance.choice((0.0, 0.05, 0.5)), how=chance.choice(("works", "works", "works", "stumbles", "plain"))
            )
        case "sleep":
            return Part("sleep", seconds=chance.choice((0.0, 0.3, 1.5)))
        case "wait":
            return Part("wait", seconds=chance.choice((0.4, 1.5, 5.0)), signal=_signal(chance))
        case _:
            later = 12.0 if chance.random() < 0.25 else 0.0
            how = chance.choice(("works", "works", "works", "stumbles", "fatal"))
            return Part("call", seconds=chance.choice((0.0, 0.3)), how=how, children=chance.choice((1, 1, 3)), later=later)


# ---- while it runs: what handlers do ----


class Told:
    """What handlers of one world have noted of steps, and clients of signals and merged submissions."""

    def __init__(self) -> None:
        self.ran: dict[Step, list[float]] = {}  # when the function of a step began
        self.returned: dict[Step, list[tuple[float, Any]]] = {}  # what a step returned, and when: then it is saved
        self.began: dict[Step, float] = {}  # when a task first came to a step, in which part of its story
        self.parts: dict[Step, Part] = {}
        self.sent: dict[tuple[str, str, str], tuple[float, float | None]] = {}  # by name, id and value: when asked for and acknowledged
        self.merges: list[Merge] = []
        self.numbers: dict[tuple[str, int], int] = {}  # which submission's payload an attempt was given
        self.priorities: dict[tuple[str, int], int] = {}
        self.edited: set[str] = set()


class Merge(msgspec.Struct):
    """A submission that may be merged with others of its key."""

    key: str
    number: int
    id: str
    asked_at: float
    acknowledged_at: float | None = None


async def tell(ctx: Context, name: str, part: Part, called: Any) -> None:
    """Do one part of a story, and note what it returned."""
    told, step, now = journal.told, Step(ctx.task.id, name), journal.now
    told.began.setdefault(step, now())
    told.parts[step] = part
    value: Any = None

    async def work() -> str:
        told.ran.setdefault(step, []).append(now())
        await asyncio.sleep(part.seconds)
        if part.how == "stumbles" and ctx.task.tries < 1:
            raise RuntimeError("it stumbles")
        return f"by attempt {ctx.attempt}"

    def work_at_once() -> str:
        told.ran.setdefault(step, []).append(now())
        return f"by attempt {ctx.attempt}"

    match part.do:
        case "step":
            value = await ctx.step(name, work_at_once if part.how == "plain" else work)
        case "sleep":
            await ctx.sleep(name, part.seconds)
        case "wait":
            try:
                value = await ctx.wait(name, part.signal, str, timeout=part.seconds)
            except TimeoutError:
                value = "nothing came"
        case "call":
            children = [called.new(number=number, how=part.how, seconds=part.seconds) for number in range(part.children)]
            for number in range(part.children):
                journal.perhaps(child_id(ctx.task.id, name, number))
            try:
                value = await ctx.call(name, [child.after(part.later) for child in children] if part.later else children)
            except (TaskFailed, TaskCancelled) as error:
                value = type(error).__name__
    told.returned.setdefault(step, []).append((now(), value))


def handlers() -> Handlers:
    """Return handlers with steps, one whose submissions are merged, and one with reserved slots."""
    group = Handlers()
    retry = RetryPolicy(tries=TRIES, base=0.5, cap=2)

    @group.task(concurrency=SLOTS["called"], timeout=20, retry=retry)
    async def called(ctx: Context, number: int, how: str = "works", seconds: float = 0.0) -> int:
        with attempt(ctx):
            await asyncio.sleep(seconds)
            if how == "fatal":
                raise Fatal("that is final")
            if how == "stumbles" and ctx.task.tries < 1:
                raise RuntimeError("it stumbles")
            return number

    @group.task(concurrency=SLOTS["story"], timeout=20, retry=retry)
    async def story(ctx: Context, parts: list[Part]) -> int:
        with attempt(ctx):
            for number, part in enumerate(parts):
                await tell(ctx, f"{part.do} {number}", part, called)
            return len(parts)

    @group.task(concurrency=SLOTS["merged"], timeout=20, retry=retry)
    async def merged(ctx: Context, number: int, seconds: float) -> int:
        with attempt(ctx):
            journal.told.numbers[ctx.task.id, ctx.fence] = number
            await asyncio.sleep(seconds)
            return number

    @group.task(concurrency=SLOTS["kept"], timeout=20, retry=retry, reserve=RESERVE)
    async def kept(ctx: Context, seconds: float) -> None:
        with attempt(ctx):
            journal.told.priorities[ctx.task.id, ctx.fence] = ctx.task.priority
            await asyncio.sleep(seconds)

    return group


# ---- while it runs: what clients do ----


class Stories:
    """What the client does with signals and submissions that are merged."""

    def __init__(self, world: Any) -> None:
        self._world = world

    async def signal(self, operation: Operation) -> None:
        """Send a signal, as a client would that asks again when it got no answer."""
        chosen, told, app = operation.payload, journal.told, self._world.app
        sent = (chosen["name"], chosen["id"], chosen["value"])
        told.sent[sent] = (journal.now(), None)
        keep = {} if chosen["keep"] is None else {"keep": chosen["keep"]}
        for _ in range(3):
            try:
                await app.signals.send(chosen["name"], chosen["value"], id=chosen["id"], **keep)
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            told.sent[sent] = (told.sent[sent][0], journal.now())
            return

    async def merge(self, operation: Operation) -> None:
        """Submit a task that may be merged with others of its key."""
        world: Any = self._world
        new = world.app.handler("merged").options(**operation.options).new(**operation.payload)
        merge = Merge(operation.options["key"], operation.payload["number"], new.id, journal.now())
        journal.told.merges.append(merge)
        if await world.add(new, world.app) is not None:
            merge.acknowledged_at = journal.now()
