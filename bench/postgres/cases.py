"""Single measurements: each prepares its database, measures one thing and returns one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.postgres.contestant import DUETIME, Contestant
from bench.postgres.draining import drain
from bench.postgres.server import Server
from bench.postgres.waiting import lateness, pickup
from bench.rounds import in_process

PLAIN, COPIED = "plain", "copied"
FEW = 2  # processes
TASKS = {"Duetime": 100_000, "graphile-worker": 60_000, "PgQueuer": 20_000}  # seconds of work for each


@dataclass(frozen=True)
class Cases:
    """What can be measured on a server, in a database that is made anew, or in one that keeps what it has."""

    server: Server
    tasks: int | None = None  # instead of TASKS

    def _number(self, contestant: Contestant) -> int:
        return self.tasks or TASKS[contestant.name]

    def _prepare(self, contestant: Contestant, database: str = PLAIN) -> str:
        self.server.fresh(database)
        url = self.server.url(database)
        contestant.do(url, "setup")
        return url

    def submitting(self, contestant: Contestant) -> float:
        """Tasks submitted a second, 1,000 a call."""
        url = self._prepare(contestant)
        self.server.execute(PLAIN, "checkpoint")
        return float(contestant.do(url, "submit", self._number(contestant))["rate"])

    def copying(self) -> float:
        """Rows of tasks copied a second: those that the last `submitting` of Duetime has left."""
        url = self._prepare(DUETIME, COPIED)
        self.server.execute(COPIED, "checkpoint")
        return in_process("bench.postgres.copying", self.server.url(PLAIN), url)["rate"]

    def draining(self, contestant: Contestant, processes: int = 1) -> float:
        """Tasks completed a second, of so many that were stored beforehand: more for many processes, whose first claims take their time."""
        tasks = self._number(contestant) * (1 if processes <= FEW else 4)
        url = self._prepare(contestant)
        contestant.do(url, "submit", tasks)
        # plans need statistics, and would otherwise depend on when autovacuum happens to come by
        self.server.execute(PLAIN, "vacuum analyze", "checkpoint")
        return drain(self.server, contestant, PLAIN, tasks, processes=processes, left=0)

    def pickup(self, contestant: Contestant) -> dict[str, float]:
        self._prepare(contestant)
        return pickup(self.server, contestant, PLAIN)

    def lateness(self, contestant: Contestant) -> dict[str, float]:
        self._prepare(contestant)
        return lateness(self.server, contestant, PLAIN)

    def keep(self, databases: Sequence[str]) -> None:
        """Make databases for Duetime that keep what they have."""
        for database in databases:
            self._prepare(DUETIME, database)

    def load(self, contestant: Contestant, database: str) -> tuple[float, float]:
        """Submit and drain in a database that keeps what it has; return both rates."""
        tasks = self._number(contestant)
        with self.server.connect(database) as connection:
            row = connection.execute(contestant.left.encode()).fetchone()
        assert row is not None
        self.server.execute(database, "checkpoint")
        submitted = float(contestant.do(self.server.url(database), "submit", tasks)["rate"])
        return submitted, drain(self.server, contestant, database, tasks, processes=1, left=int(row[0]))
