"""Workers: registering them, proving that they are alive, and taking everything from dead ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, NoScriptError, RedisError
from redis.retry import Retry

from duetime.clock import Clock, Instant
from duetime.model.lifecycle import as_cancelled, conclude
from duetime.model.outcome import Ended, Outcome, Running
from duetime.model.retry import RetryPolicy
from duetime.model.task import FINAL, ErrorInfo
from duetime.store import Store
from duetime.store.pull_workers import CONFIRMED_ALL, PullWorker, RunningTask
from duetime.store.redis.address import Address, Endpoint
from duetime.store.redis.changes import Changes
from duetime.store.redis.database import ROUNDS, OpenServer
from duetime.store.redis.finding import Finder
from duetime.store.redis.keys import Keys
from duetime.store.redis.link import USUAL_LEASE, Word, unavailable
from duetime.store.redis.records import Stored, encode, end_of, read_facts, running_of
from duetime.store.redis.scripts import LEASE, RENEW
from duetime.store.server_clock import ServerClock
from duetime.store.shard import Lease
from duetime.store.values import HintKind, NewWorker, Renewal, RunningAttempt, RunningCount, WorkerRecord

PATIENCE = 1 / 7  # of the lease: how long one renewal may take, so that several fit in before it ends
_NO_POLICY = RetryPolicy()
EndedBy: TypeAlias = Callable[[str, int], Ended]


def _by_farewell(worker: str, held: int) -> Ended:
    return Ended(Outcome.RELEASED)


def _by_death(worker: str, held: int) -> Ended:
    """Return how the attempts of a dead worker ended; one that was its only attempt may be to blame."""
    error = ErrorInfo("WorkerDied", f"worker {worker} died while it ran this task")
    return Ended(Outcome.LOST, error=error, crashed=True, alone=held == 1)


class Row(msgspec.Struct):
    """What a worker said of itself. `name` is of a pull worker."""

    host: str
    pid: int
    slots: dict[str, int]
    started_at: Instant
    concurrency: int | None = None
    lease: float = 15.0
    declared: dict[str, str] = {}
    version: str | None = None
    python: str | None = None
    name: str | None = None


_read_row = msgspec.msgpack.Decoder(Row).decode


class RedisLease:
    """Beats in the worker's row, over a connection of the thread's own."""

    def __init__(self, worker: str, lease: float, address: Address, keys: Keys, clock: ServerClock) -> None:
        self._worker = worker
        self._address = address
        self._keys = [*keys.fixed, keys.running(worker)]
        self._clock = clock
        self._within = lease * PATIENCE
        self._finder = Finder(address)
        self._server: Endpoint | None = None
        self._client: Redis | None = None

    def renew(self) -> Renewal:
        try:
            reply = self._beat(self._present())
        except MovedError as error:
            if self._address.kind != "cluster":
                raise unavailable(error, self._address) from error
            self._finder.told(Endpoint(error.host or str(self._server and self._server.host), error.port))
            self.close()
            reply = self._beat(self._present())
        if len(reply) == 1:
            return Renewal(False, 0, [])
        _, gates, targets, draining, attempts = reply
        return Renewal(True, int(gates), _attempts(attempts), int(targets), bool(draining))

    def _present(self) -> Redis:
        """Return a client of the server that has the keys at present.

        Sentinels are asked at each beat: a beat on a former primary that is cut off, and does not know that there is another one, would
        prove nothing. A cluster's node knows by itself, and stops to write when it is cut off from the others.
        """
        if self._client is None or self._address.kind == "sentinel":
            server = self._finder.find_now(self._within)
            if server != self._server or self._client is None:
                self.close()
                settings = self._address.settings(server) | {"socket_timeout": self._within, "socket_connect_timeout": self._within}
                self._client = Redis(**settings, ssl=self._address.tls, retry=Retry(NoBackoff(), 0))
                self._server = server
        return self._client

    def _beat(self, client: Redis) -> Any:
        given = self._clock.parameter
        words = [*self._keys, "" if given is None else str(given), self._worker]
        try:
            try:
                return client.evalsha(RENEW.digest, len(self._keys), *words)
            except NoScriptError:
                return client.eval(RENEW.text, len(self._keys), *words)
        except MovedError:
            raise
        except (RedisError, OSError) as error:
            self.close()
            raise unavailable(error, self._address) from error

    def inheritable(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _attempts(words: Sequence[bytes]) -> list[RunningAttempt]:
    found = []
    for id, raw in zip(words[::2], words[1::2], strict=True):
        facts = read_facts(raw)
        found.append(RunningAttempt(id.decode(), facts.a, facts.c, bool(facts.x), facts.t, facts.k))
    return sorted(found, key=lambda attempt: (attempt.claim, attempt.id))


class Registering(OpenServer):
    """Which workers there are, and what they run."""

    def __init__(self, address: Address, control: Store, clock: Clock | None) -> None:
        super().__init__(address, control, clock)
        self._known_to_control: dict[str, Lease] = {}

    async def _note_lease(self, lease: float) -> None:
        """Let a server that forgets its last writes know how long an attempt may go on that it has forgotten, before there is one."""
        server = self._opened
        link = await server.link()
        words = [round(lease * 1_000_000), round(USUAL_LEASE * 1_000_000)]
        if not (await self._run(LEASE, [], [*words, 0]))[1]:
            return
        if link.flushes == "always" or (link.flushes == "everysec" and link.waits_for_disks):
            await server.waiting.until("disk", link.incarnation)
        if link.replicas:
            await server.waiting.until("replica", link.incarnation)
        await self._run(LEASE, [], [*words, 1])

    async def register(self, worker: NewWorker) -> Lease:
        await self._note_lease(worker.lease)
        row = Row(
            worker.host,
            worker.pid,
            dict(worker.slots),
            self.now(),
            worker.concurrency,
            worker.lease,
            dict(worker.declared),
            worker.version,
            worker.python,
        )
        changes = self._changes()
        workers = self._keys.workers
        changes.do("HSET", workers, f"row:{worker.id}", encode(row), f"seen:{worker.id}", 0, f"beat_at:{worker.id}", self.now())
        changes.do("HINCRBY", workers, f"beat:{worker.id}", 1)
        if worker.draining:
            changes.do("HSET", workers, f"draining:{worker.id}", 1)
        else:
            changes.do("HDEL", workers, f"draining:{worker.id}")
        await self._write(changes)
        # control knows the worker too: its permits and declarations belong to it. What proves its life is the beat on the server
        former = self._known_to_control.pop(worker.id, None)
        self._known_to_control[worker.id] = await self._control.register(worker)
        if former is not None:
            former.close()
        return RedisLease(worker.id, worker.lease, self._address, self._keys, self._clock)

    async def _row(self, worker: str) -> tuple[bytes | None, Row | None]:
        raw: bytes | None = await self._opened.call("HGET", self._keys.workers, f"row:{worker}")
        return raw, None if raw is None else _read_row(raw)

    async def change_slots(self, worker: NewWorker) -> bool:
        for _ in range(ROUNDS):
            raw, row = await self._row(worker.id)
            if raw is None or row is None:
                return False
            row.slots, row.declared, row.concurrency = dict(worker.slots), dict(worker.declared), worker.concurrency
            if await self._put_row(worker.id, raw, row):
                await self._control.change_slots(worker)
                return True
        return False

    async def _put_row(self, worker: str, seen: bytes, row: Row) -> bool:
        changes = self._changes()
        changes.expect(self._keys.workers, f"row:{worker}", seen)
        changes.do("HSET", self._keys.workers, f"row:{worker}", encode(row))
        return await self._write(changes)

    async def drain(self, worker: str, draining: bool) -> bool:
        return await self._mark(worker, "HSET" if draining else "HDEL", f"draining:{worker}", *([1] if draining else []))

    async def note_lag(self, worker: str, lag: float) -> None:
        await self._mark(worker, "HSET", f"lag:{worker}", lag)

    async def confirm_gates(self, worker: str, version: int) -> None:
        for _ in range(ROUNDS):
            workers = self._keys.workers
            raw, seen = await self._opened.call("HMGET", workers, f"row:{worker}", f"seen:{worker}")
            if raw is None or int(seen or 0) >= version:
                return
            changes = self._changes()
            changes.expect(workers, f"row:{worker}", raw)
            changes.expect(workers, f"seen:{worker}", seen)
            changes.do("HSET", workers, f"seen:{worker}", version)
            if await self._write(changes):
                self._hint(HintKind.GATES)
                return

    async def _mark(self, worker: str, command: str, *words: Word) -> bool:
        """Change something of a registered worker's; return whether it is registered."""
        for _ in range(ROUNDS):
            raw, _row = await self._row(worker)
            if raw is None:
                return False
            changes = self._changes()
            changes.expect(self._keys.workers, f"row:{worker}", raw)
            changes.do(command, self._keys.workers, *words)
            if await self._write(changes):
                return True
        return False

    async def attempts_of(self, worker: str) -> list[RunningAttempt]:
        words: list[bytes] = []
        for stored in await self._held_by(worker):
            words += [stored.id.encode(), stored.raw]
        return _attempts(words)

    async def _held_by(self, worker: str) -> list[Stored]:
        ids: list[bytes] = await self._opened.call("SMEMBERS", self._keys.running(worker))
        if not ids:
            return []
        _, found = await self._read_tasks(sorted(id.decode() for id in ids))
        return [stored for stored in found.values() if stored.facts.s == "r" and stored.facts.w == worker]

    async def running_counts(self) -> list[RunningCount]:
        counts: dict[tuple[str, str], int] = {}
        for worker in await self._rows():
            for stored in await self._held_by(worker):
                key = worker, stored.facts.handler
                counts[key] = counts.get(key, 0) + 1
        return [RunningCount(worker, handler, count) for (worker, handler), count in sorted(counts.items())]

    async def _rows(self) -> dict[str, dict[str, bytes]]:
        """Return what is stored of each registered worker, by the name of the fact."""
        words: list[bytes] = await self._opened.call("HGETALL", self._keys.workers)
        workers: dict[str, dict[str, bytes]] = {}
        for field, value in zip(words[::2], words[1::2], strict=True):
            fact, _, worker = field.decode().partition(":")
            workers.setdefault(worker, {})[fact] = value
        return {worker: facts for worker, facts in workers.items() if "row" in facts}

    async def workers(self) -> list[WorkerRecord]:
        rows = await self._rows()
        if not rows:
            return []
        running = await self._opened.call_all([("SCARD", self._keys.running(worker)) for worker in rows])
        records = []
        for (worker, facts), count in zip(rows.items(), running, strict=True):
            row = _read_row(facts["row"])
            pull = row.name is not None
            records.append(
                WorkerRecord(
                    id=worker,
                    host=row.host,
                    pid=row.pid,
                    slots=row.slots,
                    started_at=row.started_at,
                    beat=int(facts.get("beat", 0)),
                    beat_at=int(facts["beat_at"]) if "beat_at" in facts else None,
                    seen_gates=CONFIRMED_ALL if pull else int(facts.get("seen", 0)),
                    running=count,
                    alive=None,
                    concurrency=row.concurrency,
                    lease=row.lease,
                    pull=pull,
                    draining="draining" in facts,
                    version=row.version,
                    python=row.python,
                    lag=float(facts.get("lag", 0)),
                )
            )
        return sorted(records, key=lambda record: (record.started_at, record.id))

    async def unregister(self, worker: str) -> None:
        released = await self._take_from(worker, None, _by_farewell)
        if released:
            self._hint(HintKind.DUE)
        self._hint(HintKind.GATES)  # a caller that sets a gate may wait for this worker only

    async def reap(self, worker: str, beat: int) -> int | None:
        taken = await self._take_from(worker, beat, _by_death)
        if taken is not None:
            self._hint(HintKind.GATES)
        if taken:
            self._hint(HintKind.DUE)
            self._hint(HintKind.DONE)
        return taken

    async def _take_from(self, worker: str, beat: int | None, ended_by: EndedBy) -> int | None:
        """End all attempts of a worker and forget it, in one step; None if it is not known, or has another beat."""
        while True:
            workers = self._keys.workers
            raw, seen = await self._opened.call("HMGET", workers, f"row:{worker}", f"beat:{worker}")
            if raw is None or (beat is not None and int(seen or 0) != beat):
                return None
            held = await self._held_by(worker)
            now, _ = await self._read_tasks([])
            changes = self._changes()
            changes.expect(workers, f"row:{worker}", raw)
            changes.expect(workers, f"beat:{worker}", seen)
            ended = ended_by(worker, len(held))
            for stored in held:
                changes.seen(stored)
                self._end_for(changes, stored, worker, ended, now)
            fields = ("row", "beat", "beat_at", "seen", "draining", "lag")
            changes.do("HDEL", workers, *(f"{field}:{worker}" for field in fields))
            if await self._write(changes):
                await self._forget_in_control(worker)
                return len(held)

    async def _forget_in_control(self, worker: str) -> None:
        """Free what control has of a worker; its permits are only free once nothing of it runs."""
        await self._control.unregister(worker)
        lease = self._known_to_control.pop(worker, None)
        if lease is not None:
            lease.close()

    def _end_for(self, changes: Changes, stored: Stored, worker: str, ended: Ended, now: Instant) -> None:
        """End an attempt on behalf of a worker that cannot."""
        facts = stored.facts
        running = Running(stored.id, facts.handler, facts.a, facts.t, facts.k, facts.i, facts.e)
        settlement = conclude(running, ended, _NO_POLICY, started_at=max(facts.g, facts.d), now=now, chance=0.0)
        settlement = as_cancelled(settlement) if facts.x else settlement
        changes.leave(stored)
        facts.t, facts.k = settlement.tries, settlement.crashes
        if settlement.state in FINAL:
            changes.do("HSET", self._keys.ends, stored.id, end_of(settlement, worker))
            changes.finish(stored.id, facts, settlement.state, now)
            return
        due_at = settlement.due_at or now
        facts.d = max(due_at, facts.d) if facts.g < facts.d else due_at
        changes.keep_attempt(stored.id, settlement.attempt, end_of(settlement, worker))
        changes.wait(stored.id, facts, now)

    # ---- pull workers ----

    async def register_pull_worker(self, worker: PullWorker) -> None:
        await self._note_lease(worker.lease)
        for _ in range(ROUNDS):
            raw, row = await self._row(worker.id)
            if row is not None and row.name is None:
                return
            started_at = self.now() if row is None else row.started_at
            new = Row("", 0, dict(worker.slots), started_at, None, worker.lease, dict(worker.declared), name=worker.name)
            changes = self._changes()
            changes.expect(self._keys.workers, f"row:{worker.id}", raw)
            changes.do("HSET", self._keys.workers, f"row:{worker.id}", encode(new), f"beat_at:{worker.id}", self.now())
            changes.do("HINCRBY", self._keys.workers, f"beat:{worker.id}", 1)
            if await self._write(changes):
                await self._control.register_pull_worker(worker)
                return

    async def pull_worker(self, id: str) -> PullWorker | None:
        _, row = await self._row(id)
        if row is None or row.name is None:
            return None
        draining = await self._opened.call("HEXISTS", self._keys.workers, f"draining:{id}")
        return PullWorker(id=id, name=row.name, slots=row.slots, lease=row.lease, declared=row.declared, draining=bool(draining))

    async def renew_pull_worker(self, id: str) -> bool:
        for _ in range(ROUNDS):
            raw, row = await self._row(id)
            if raw is None or row is None or row.name is None:
                return False
            changes = self._changes()
            changes.expect(self._keys.workers, f"row:{id}", raw)
            changes.do("HINCRBY", self._keys.workers, f"beat:{id}", 1)
            changes.do("HSET", self._keys.workers, f"beat_at:{id}", self.now())
            if await self._write(changes):
                return True
        return False

    async def running_tasks(self, worker: str, ids: Sequence[str] | None = None, *, payloads: bool = True) -> list[RunningTask]:
        epoch = int(await self._opened.call("HGET", self._keys.meta, "epoch") or 0)
        held = await self._held_by(worker)
        tasks = [running_of(each.id, each.facts, each.content, epoch, payloads=payloads) for each in held if ids is None or each.id in ids]
        return sorted(tasks, key=lambda task: (task.claim, -task.priority, task.due_at, task.id))
