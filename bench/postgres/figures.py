"""The figures on PostgreSQL, part by part: which cases are compared in a round, and the goal of their ratio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.fairness import compare as compare_fairness
from bench.lanes import compare as compare_lanes
from bench.lateness import TASKS as LATE_TASKS
from bench.lateness import WINDOW, bare
from bench.many_handlers import compare as compare_handlers
from bench.peers.install import PeerMissing
from bench.postgres.backlog import fill
from bench.postgres.cases import PLAIN, Cases
from bench.postgres.contestant import DUETIME, DUETIME_BEST, GRAPHILE, PGQUEUER, Contestant
from bench.postgres.server import Server, fsync_milliseconds, running_server
from bench.postgres.waiting import lateness, pickup
from bench.rounds import ROUNDS, Report, console, interleave, median, median_ratio
from bench.schedules import TOGETHER
from bench.schedules import measure as measure_schedules

MANY = 20  # worker processes


class Figures:
    """Takes the figures and enters them in the report."""

    def __init__(self, server: Server, report: Report, *, full: bool, rounds: int = ROUNDS, tasks: int | None = None) -> None:
        self._server = server
        self._cases = Cases(server, tasks)
        self._report = report
        self._rounds = rounds
        self._backlog = 10_000_000 if full else 1_000_000
        self._lasting = 600.0 if full else 60.0

    def _installed(self, *peers: Contestant) -> list[Contestant]:
        """Return the peers that can be installed. The figures beside the others are reported as missing: nothing replaces them."""
        there = []
        for peer in peers:
            try:
                with console.status(f"installing {peer.name}"):
                    peer.install()
                there.append(peer)
            except PeerMissing as error:
                self._report.lack(f"everything beside {peer.name}", str(error))
        return there

    def draining(self) -> None:
        peers = self._installed(GRAPHILE, PGQUEUER)
        cases = self._cases.draining
        measured: dict[str, Callable[[], float]] = {
            "Duetime": partial(cases, DUETIME_BEST),
            **{peer.name: partial(cases, peer) for peer in peers},
            "Duetime, default": partial(cases, DUETIME),
            "Duetime, 2": partial(cases, DUETIME_BEST, 2),
            f"Duetime, {MANY}": partial(cases, DUETIME, MANY),
            **{f"{peer.name}, 2": partial(cases, peer, 2) for peer in peers if peer is GRAPHILE},
        }
        rates = interleave(measured, self._rounds)
        for name, ours, theirs, goal in (
            ("drain, one process", "Duetime", GRAPHILE.name, 2.0),
            ("drain, one process", "Duetime", PGQUEUER.name, 4.0),
            ("drain, one process, default concurrency of 50", "Duetime, default", GRAPHILE.name, None),
            ("drain, two processes", "Duetime, 2", f"{GRAPHILE.name}, 2", 1.5),
            (f"drain, {MANY} processes, default concurrency", f"Duetime, {MANY}", f"{GRAPHILE.name}, 2", None),
        ):
            if theirs in rates:
                self._rates(name, rates[ours], theirs, rates[theirs], goal)

    def submitting(self) -> None:
        peers = self._installed(GRAPHILE, PGQUEUER)
        rates = interleave(
            {
                "Duetime": partial(self._cases.submitting, DUETIME),
                "COPY": self._cases.copying,
                **{peer.name: partial(self._cases.submitting, peer) for peer in peers},
            },
            self._rounds,
        )
        name = "submit_many, 1,000 a call"
        best = max((peer.name for peer in peers), key=lambda peer: median(rates[peer]), default=None)
        if best is not None:
            self._rates(name, rates["Duetime"], best, rates[best], 1.5)
        self._rates(name, rates["Duetime"], "COPY of the same rows", rates["COPY"], 0.5)

    def pickup(self) -> None:
        contestants = (DUETIME, *self._installed(PGQUEUER, GRAPHILE))
        waits = self._waits({each.name: partial(self._cases.pickup, each) for each in contestants})
        for share, peer, goal in (("p50", PGQUEUER, 1.0), ("p50", GRAPHILE, None), ("p99", PGQUEUER, None), ("p99", GRAPHILE, None)):
            if peer in contestants:
                self._delays(f"pickup {share} on an idle system", waits["Duetime"], peer.name, waits[peer.name], share, goal)

    def lateness(self) -> None:
        waits = self._waits({"timer": lambda: asyncio.run(bare()), "Duetime": partial(self._cases.lateness, DUETIME)})
        ours, timer = ([wait["p99"] for wait in waits[name]] for name in ("Duetime", "timer"))
        above = median([mine - bare for mine, bare in zip(ours, timer, strict=True)])
        name = f"lateness p99 of {LATE_TASKS:,} tasks in {WINDOW:g} s, above a bare timer"
        beside = f"loop.call_at {median(timer):.2f} ms"
        self._report.add(name, f"{median(ours):.2f} ms", beside, above, 4.0, at_most=True, unit="ms")

    def _new_store(self, name: str) -> str:
        self._server.fresh(name)
        return self._server.url(name)

    def many_handlers(self) -> None:
        """The figures of bench/many_handlers.py."""
        compare_handlers(self._report, self._new_store, rounds=self._rounds)

    def lanes(self) -> None:
        """The figures of bench/lanes.py."""
        compare_lanes(self._report, self._new_store, rounds=self._rounds)

    def fairness(self) -> None:
        """The figures of bench/fairness.py."""
        compare_fairness(self._report, self._new_store, rounds=self._rounds)

    def schedules(self) -> None:
        """The figures of bench/schedules.py; `--tasks` is how many schedules are due in the same second."""
        measure_schedules(self._report, self._new_store, rounds=self._rounds, together=self._cases.tasks or TOGETHER)

    def backlog(self) -> None:
        """All again with as many far-future and as many finished tasks in the store."""
        self._cases.keep([PLAIN])
        with console.status(f"filling a database with 2 × {self._backlog:,} tasks"):
            fill(self._server, "backlog", self._backlog)
        self._compare("backlog", f"{self._backlog:,} far-future and finished tasks", 1.2)

    def snapshot(self) -> None:
        """All again in a database in which a transaction has been open for long."""
        self._cases.keep([PLAIN, "snapshot"])
        with self._server.old_snapshot("snapshot"):
            self._compare("snapshot", f"a transaction open for {self._lasting:g} s", 1.3, self._lasting)

    def _compare(self, database: str, what: str, goal: float, lasting: float = 0.0) -> None:
        """Measure in a database and, beside it, in a plain one; of a longer time, its last rounds count."""
        loads: dict[str, list[tuple[float, float]]] = {database: [], PLAIN: []}
        began = time.monotonic()

        def load(name: str) -> float:
            loads[name].append(self._cases.load(DUETIME_BEST, name))
            return loads[name][-1][1]

        while len(loads[database]) < self._rounds or time.monotonic() - began < lasting:
            interleave({name: partial(load, name) for name in (PLAIN, database)}, 1)
        for number, verb in enumerate(("submit_many, 1,000 a call", "drain, one process")):
            slow, fast = ([rates[number] for rates in loads[name][-self._rounds :]] for name in (database, PLAIN))
            slowdown = median_ratio(fast, slow)
            self._report.add(
                f"{verb}, with {what}", f"{median(slow):,.0f}/s", f"without {median(fast):,.0f}/s", slowdown, goal, at_most=True
            )
        for verb, share, case in (("pickup", "p50", pickup), ("lateness", "p99", lateness)):
            waits = self._waits({name: partial(case, self._server, DUETIME, name) for name in (PLAIN, database)})
            self._delays(f"{verb} {share}, with {what}", waits[database], "without", waits[PLAIN], share, goal)

    def _waits(self, cases: dict[str, Callable[[], dict[str, float]]]) -> dict[str, list[dict[str, float]]]:
        """Interleave cases that have several figures each."""
        waits: dict[str, list[dict[str, float]]] = {name: [] for name in cases}

        def note(name: str) -> float:
            waits[name].append(cases[name]())
            return waits[name][-1]["p50"]

        interleave({name: partial(note, name) for name in cases}, self._rounds)
        return waits

    def _rates(self, name: str, ours: Sequence[float], peer: str, theirs: Sequence[float], goal: float | None) -> None:
        self._report.add(name, f"{median(ours):,.0f}/s", f"{peer} {median(theirs):,.0f}/s", median_ratio(ours, theirs), goal)

    def _delays(
        self, name: str, ours: Sequence[dict[str, float]], peer: str, theirs: Sequence[dict[str, float]], share: str, goal: float | None
    ) -> None:
        mine, others = ([wait[share] for wait in waits] for waits in (ours, theirs))
        beside = f"{peer} {median(others):.2f} ms"
        self._report.add(name, f"{median(mine):.2f} ms", beside, median_ratio(mine, others), goal, at_most=True)


PARTS = {
    "postgres.draining": Figures.draining,
    "postgres.submitting": Figures.submitting,
    "postgres.pickup": Figures.pickup,
    "postgres.lateness": Figures.lateness,
    "postgres.schedules": Figures.schedules,
    "postgres.many_handlers": Figures.many_handlers,
    "postgres.lanes": Figures.lanes,
    "postgres.fairness": Figures.fairness,
    "postgres.backlog": Figures.backlog,
    "postgres.snapshot": Figures.snapshot,
}


def _introduce(server: Server, rounds: int) -> None:
    console.print(
        f"PostgreSQL {server.version} on loopback, fsync and synchronous_commit on (an fsync takes {fsync_milliseconds():.2f} ms here), "
        f"shared_buffers 1 GB, one server for all. Draining counts durable completions; Duetime and PgQueuer keep history, "
        f"graphile-worker does not. Ratios are medians of {rounds} interleaved rounds."
    )


def run(report: Report, parts: Sequence[str], *, full: bool, rounds: int = ROUNDS, tasks: int | None = None) -> None:
    """Start a server and take the figures of these parts."""
    with running_server() as server:
        _introduce(server, rounds)
        figures = Figures(server, report, full=full, rounds=rounds, tasks=tasks)
        for part in parts:
            PARTS[part](figures)
