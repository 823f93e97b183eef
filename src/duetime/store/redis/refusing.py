"""What this store cannot do yet. Each is refused when it is asked for, and nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duetime.clock import Instant
from duetime.model.flow import Stopping
from duetime.model.limit import CountedLimit
from duetime.model.outcome import Acceptance, Settlement, SettleVerdict
from duetime.model.steps import NewSignal, NewStep, StepRecord
from duetime.model.task import TaskRecord
from duetime.store.accepting import Heard, OpenAttempt, Report, Withdrawal
from duetime.store.flows import FlowRecord, FlowVerdict, NewFlow, NewPiece, PieceVerdict
from duetime.store.intents import Intent
from duetime.store.limits import ParkedUnder
from duetime.store.redis.database import OpenServer, refused

_FLOWS, _STEPS = "flows", "steps and signals"
_INTENTS = "cancels and edits in a caller's transaction"


class Refusing(OpenServer):
    """Flows, steps, events, attempts that somebody outside goes on with, and intents."""

    async def add_flow(self, flow: NewFlow) -> FlowRecord:
        raise refused(_FLOWS)

    async def add_flow_on(self, connection: object, flow: NewFlow) -> FlowRecord:
        raise refused(_FLOWS)

    async def stop_flow(self, flow: str, why: Stopping) -> FlowVerdict:
        return FlowVerdict.UNKNOWN

    async def retry_flow(self, flow: str) -> FlowVerdict:
        return FlowVerdict.UNKNOWN

    async def save_pieces(self, worker: str, pieces: Sequence[NewPiece]) -> list[PieceVerdict]:
        return [PieceVerdict.UNREAD] * len(pieces)

    async def rerun_flow(self, flow: str, node: int) -> FlowVerdict:
        return FlowVerdict.UNKNOWN

    async def save_steps(self, worker: str, steps: Sequence[NewStep]) -> list[StepRecord | None]:
        raise refused(_STEPS)

    async def send_signals(self, signals: Sequence[NewSignal]) -> list[bool]:
        raise refused(_STEPS)

    async def send_signals_on(self, connection: object, signals: Sequence[NewSignal]) -> list[bool]:
        raise refused(_STEPS)

    async def declare_counted(self, handlers: Sequence[str], limits: Sequence[CountedLimit]) -> None:
        if limits:
            raise refused("limits by key, by rate, or with another answer than to wait")

    async def put_partition(
        self, name: str, partition: str, running: int | None, *, until_at: Instant | None, note: str, set_by: str
    ) -> bool:
        return False

    async def parked_under(self, task_id: str) -> ParkedUnder | None:
        return None

    async def look_at_limits(self) -> int:
        return 0

    async def put_weights(self, handler: str, weights: Mapping[str, float], *, note: str, set_by: str) -> None:
        raise refused("weights of collections (fair=)")

    async def follow_events(self, follower: str, seconds: float, *, remember: bool = False) -> str:
        raise refused("events (hooks and streams)")

    async def get_on(self, connection: object, ids: Sequence[str]) -> list[TaskRecord | None]:
        raise refused(_INTENTS)

    async def find_on(self, connection: object, handler: str, key: str) -> TaskRecord | None:
        raise refused(_INTENTS)

    async def intend(self, connection: object, intents: Sequence[Intent]) -> None:
        raise refused(_INTENTS)

    async def carry_out(self, limit: int) -> int:
        return 0

    async def intents(self, task: str) -> list[Intent]:
        return []

    async def accept(self, worker: str, acceptances: Sequence[Acceptance]) -> list[SettleVerdict]:
        if acceptances:
            raise refused("attempts that an HTTP target goes on with after it answered 202")
        return []

    async def open_attempts(self, ids: Sequence[str]) -> list[OpenAttempt]:
        return []

    async def complete(self, settlements: Sequence[Settlement], *, overdue: bool = False) -> list[SettleVerdict]:
        return [SettleVerdict.STALE] * len(settlements)

    async def hear(self, reports: Sequence[Report]) -> list[Heard]:
        return [Heard(SettleVerdict.STALE)] * len(reports)

    async def take_withdrawals(self, handlers: Sequence[str], limit: int) -> list[Withdrawal]:
        return []

    async def overdue(self, limit: int) -> list[OpenAttempt]:
        return []
