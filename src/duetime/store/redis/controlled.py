"""What control does: everything that is not about tasks on their way is asked of the SQL store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from duetime.clock import Instant
from duetime.model.access import AuditEntry, SessionRecord, TokenRecord
from duetime.model.artifacts import Artifact, ArtifactKind, Upload
from duetime.model.failures import FailureGroup
from duetime.model.fairness import WeightsRecord
from duetime.model.figures import FigureKey
from duetime.model.flow import FlowState
from duetime.model.gate import Gate, Gates
from duetime.model.limit import Allotment, Ask, LimitRecord, PartitionRecord, RateRule
from duetime.model.operation import Operation
from duetime.model.quota import QuotaAsk
from duetime.model.rules import DayCalendar
from duetime.model.schedule import ScheduleRecord, Skip
from duetime.model.secrets import SealedSecret, SecretVersion
from duetime.model.series import Sample, Step
from duetime.model.steps import SignalRecord, StepRecord
from duetime.model.targets import StoredTarget, TargetVersions
from duetime.store.access import AuditFilter, AuditPage, TokenVerdict
from duetime.store.alerts import Document, DocumentChange, DocumentKind
from duetime.store.artifacts import ArtifactGone, SeenArtifact
from duetime.store.disabling import Probe
from duetime.store.events import EventPage, Follower
from duetime.store.flows import FLOWS_AT_ONCE, FlowCount, FlowPage, FlowRecord, Member
from duetime.store.locks import LockRecord, Seen
from duetime.store.redis.database import OpenServer
from duetime.store.schedules import DueSchedules, DutyLease, ScheduleCursor, ScheduleFilter
from duetime.store.series import SeriesPage
from duetime.store.servers import NewServer, ServerRecord
from duetime.store.steps import Looked
from duetime.store.values import Declaration, Inconsistency


class Controlled(OpenServer):
    """The verbs of control that know nothing of tasks."""

    # ---- control ----

    async def declarations(self, *, former: bool = False) -> list[Declaration]:
        return await self._control.declarations(former=former)

    async def gates(self) -> Gates:
        return await self._control.gates()

    # ---- disabling ----

    async def take_probe(self, handlers: Collection[str]) -> Probe:
        return await self._control.take_probe(handlers)

    async def put_off_probe(self, gate: Gate, probe_at: Instant) -> None:
        await self._control.put_off_probe(gate, probe_at)

    # ---- limits ----

    async def allot(self, worker: str, number: int, asks: Sequence[Ask]) -> list[Allotment]:
        return await self._control.allot(worker, number, asks)

    async def put_limit(
        self,
        name: str,
        running: int | None,
        *,
        until_at: Instant | None,
        note: str,
        set_by: str,
        rates: Sequence[RateRule] | None = None,
    ) -> int | None:
        return await self._control.put_limit(name, running, until_at=until_at, note=note, set_by=set_by, rates=rates)

    async def reset_limit(self, name: str) -> int | None:
        return await self._control.reset_limit(name)

    async def partitions(self, name: str, *, only: str | None = None, after: str | None = None, limit: int = 100) -> list[PartitionRecord]:
        return await self._control.partitions(name, only=only, after=after, limit=limit)

    # ---- weights, quotas, servers ----

    async def weights(self) -> Sequence[WeightsRecord]:
        return await self._control.weights()

    async def spend_quotas(self, asks: Sequence[QuotaAsk]) -> list[int]:
        return await self._control.spend_quotas(asks)

    async def beat_server(self, server: NewServer) -> None:
        await self._control.beat_server(server)

    async def remove_server(self, id: str) -> bool:
        return await self._control.remove_server(id)

    async def servers(self) -> list[ServerRecord]:
        return await self._control.servers()

    async def limits(self) -> list[LimitRecord]:
        return await self._control.limits()

    # ---- schedules ----

    async def due_schedules(
        self, limit: int, closed: Sequence[tuple[str, str | None]] = (), *, after: ScheduleCursor | None = None
    ) -> DueSchedules:
        return await self._control.due_schedules(limit, closed, after=after)

    async def wake_schedules(self, names: Sequence[str]) -> None:
        await self._control.wake_schedules(names)

    async def schedules(self, names: Sequence[str]) -> list[ScheduleRecord | None]:
        return await self._control.schedules(names)

    async def list_schedules(self, filter: ScheduleFilter) -> list[ScheduleRecord]:
        return await self._control.list_schedules(filter)

    async def skips(self, schedule: str, limit: int, before: Instant | None = None) -> list[Skip]:
        return await self._control.skips(schedule, limit, before)

    async def prune_skips(self, before: Instant, limit: int) -> int:
        return await self._control.prune_skips(before, limit)

    async def put_calendar(self, name: str, calendar: DayCalendar | None) -> bool:
        return await self._control.put_calendar(name, calendar)

    async def calendars(self) -> dict[str, DayCalendar]:
        return await self._control.calendars()

    async def take_duty(self, duty: str, holder: str, seconds: float) -> DutyLease:
        return await self._control.take_duty(duty, holder, seconds)

    async def leave_duty(self, duty: str, holder: str) -> None:
        await self._control.leave_duty(duty, holder)

    async def duties(self) -> dict[str, DutyLease]:
        return await self._control.duties()

    # ---- access ----

    async def put_token(self, token: TokenRecord) -> TokenVerdict:
        return await self._control.put_token(token)

    async def tokens(self) -> list[TokenRecord]:
        return await self._control.tokens()

    async def find_tokens(self, ids: Sequence[str]) -> list[TokenRecord | None]:
        return await self._control.find_tokens(ids)

    async def remove_token(self, id: str) -> bool:
        return await self._control.remove_token(id)

    async def note_use(self, uses: Mapping[str, Instant]) -> None:
        await self._control.note_use(uses)

    async def put_session(self, session: SessionRecord) -> None:
        await self._control.put_session(session)

    async def find_sessions(self, digests: Sequence[str]) -> list[SessionRecord | None]:
        return await self._control.find_sessions(digests)

    async def renew_session(self, digest: str, idle_at: Instant) -> None:
        await self._control.renew_session(digest, idle_at)

    async def remove_session(self, digest: str) -> bool:
        return await self._control.remove_session(digest)

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        await self._control.add_audit(entries)

    async def audit(self, filter: AuditFilter) -> AuditPage:
        return await self._control.audit(filter)

    async def prune_audit(self, before: Instant, limit: int) -> int:
        return await self._control.prune_audit(before, limit)

    # ---- secrets ----

    async def put_secret(self, secret: SealedSecret, old_until_at: Instant) -> bool:
        return await self._control.put_secret(secret, old_until_at)

    async def secrets(self) -> list[SecretVersion]:
        return await self._control.secrets()

    async def sealed_secrets(self, names: Sequence[str]) -> list[list[SealedSecret]]:
        return await self._control.sealed_secrets(names)

    async def reseal_secrets(self, changes: Sequence[tuple[SealedSecret, SealedSecret]]) -> list[bool]:
        return await self._control.reseal_secrets(changes)

    async def remove_secret(self, name: str) -> bool:
        return await self._control.remove_secret(name)

    async def prune_secrets(self) -> int:
        return await self._control.prune_secrets()

    # ---- artifacts ----

    async def add_upload(self, upload: Upload) -> None:
        await self._control.add_upload(upload)

    async def upload(self, id: str) -> Upload | None:
        return await self._control.upload(id)

    async def finish_upload(self, id: str, kind: ArtifactKind) -> Artifact | None:
        return await self._control.finish_upload(id, kind)

    async def artifacts(self, name: str | None = None) -> list[Artifact]:
        return await self._control.artifacts(name)

    async def artifact(self, name: str, version: int | None = None) -> Artifact | None:
        return await self._control.artifact(name, version)

    async def remove_artifact(self, name: str, version: int, seen: SeenArtifact | None = None) -> Artifact | ArtifactGone:
        return await self._control.remove_artifact(name, version, seen)

    async def needs_blob(self, sha256: str) -> bool:
        return await self._control.needs_blob(sha256)

    async def ended_uploads(self, before: Instant, limit: int) -> list[str]:
        return await self._control.ended_uploads(before, limit)

    async def remove_uploads(self, ids: Sequence[str]) -> None:
        await self._control.remove_uploads(ids)

    # ---- targets ----

    async def targets(self, names: Collection[str] | None = None) -> list[StoredTarget]:
        return await self._control.targets(names)

    async def target_versions(self) -> TargetVersions:
        return await self._control.target_versions()

    # ---- figures ----

    async def add_figures(self, source: str, number: int, increments: Mapping[FigureKey, int]) -> None:
        await self._control.add_figures(source, number, increments)

    async def figures(self) -> dict[FigureKey, int]:
        return await self._control.figures()

    async def fold_figures(self, before: Instant) -> int:
        return await self._control.fold_figures(before)

    # ---- operations ----

    async def add_operation(self, operation: Operation) -> Operation:
        return await self._control.add_operation(operation)

    async def operations(self, limit: int, *, before: tuple[Instant, str] | None = None, live: bool = False) -> list[Operation]:
        return await self._control.operations(limit, before=before, live=live)

    async def operation(self, operation: str) -> Operation | None:
        return await self._control.operation(operation)

    async def save_operation(self, operation: Operation) -> bool:
        return await self._control.save_operation(operation)

    async def prune_operations(self, before: Instant, limit: int) -> int:
        return await self._control.prune_operations(before, limit)

    # ---- series ----

    async def keep_sample(self, sample: Sample) -> None:
        await self._control.keep_sample(sample)

    async def last_sample(self) -> Sample | None:
        return await self._control.last_sample()

    async def series(self, step: Step, since: Instant, until: Instant, handler: str | None = None) -> SeriesPage:
        return await self._control.series(step, since, until, handler)

    async def fold_series(self) -> int:
        return await self._control.fold_series()

    # ---- failures ----

    async def failures(self, since: Instant, *, handler: str | None = None) -> list[FailureGroup]:
        return await self._control.failures(since, handler=handler)

    async def failure(self, fingerprint: str, since: Instant) -> FailureGroup | None:
        return await self._control.failure(fingerprint, since)

    async def mute_failure(self, fingerprint: str, until_at: Instant | None, by: str) -> bool:
        return await self._control.mute_failure(fingerprint, until_at, by)

    async def fold_failures(self) -> int:
        return await self._control.fold_failures()

    async def prune_failures(self) -> int:
        return await self._control.prune_failures()

    # ---- flows ----

    async def flows(self, ids: Sequence[str]) -> list[FlowRecord | None]:
        return await self._control.flows(ids)

    async def flow_page(
        self, *, state: FlowState | None = None, name: str | None = None, before: str | None = None, limit: int = 50
    ) -> FlowPage:
        return await self._control.flow_page(state=state, name=name, before=before, limit=limit)

    async def flow_counts(self) -> list[FlowCount]:
        return await self._control.flow_counts()

    async def flow_members(self, flow: str, node: int, *, after: int = -1, limit: int = 100) -> list[Member]:
        return await self._control.flow_members(flow, node, after=after, limit=limit)

    async def flow_values(self, flow: str, node: int) -> list[tuple[int, bytes]]:
        return await self._control.flow_values(flow, node)

    async def advance_flows(self, limit: int = FLOWS_AT_ONCE) -> int:
        return await self._control.advance_flows(limit)

    async def inspect_flows(self, *, repair: bool) -> list[Inconsistency]:
        return await self._control.inspect_flows(repair=repair)

    async def prune_flows(self, before: Instant, limit: int) -> int:
        return await self._control.prune_flows(before, limit)

    # ---- events ----

    async def pass_events(self, follower: str, before: str, after: str) -> bool:
        return await self._control.pass_events(follower, before, after)

    async def followers(self) -> list[Follower]:
        return await self._control.followers()

    async def leave_events(self, follower: str) -> bool:
        return await self._control.leave_events(follower)

    async def events(self, after: str | None, limit: int) -> EventPage:
        return await self._control.events(after, limit)

    async def prune_events(self, before: Instant, until: Instant, limit: int) -> int:
        return await self._control.prune_events(before, until, limit)

    # ---- locks ----

    async def take_lock(self, name: str, holder: str, by: str, lease: float, dead: Seen | None = None) -> LockRecord:
        return await self._control.take_lock(name, holder, by, lease, dead)

    async def renew_lock(self, name: str, holder: str) -> bool:
        return await self._control.renew_lock(name, holder)

    async def free_lock(self, name: str, holder: str, rest: float = 0.0) -> bool:
        return await self._control.free_lock(name, holder, rest)

    async def locks(self) -> list[LockRecord]:
        return await self._control.locks()

    async def remove_lock(self, name: str) -> bool:
        return await self._control.remove_lock(name)

    async def prune_locks(self, before: Instant) -> int:
        return await self._control.prune_locks(before)

    # ---- steps ----

    async def steps(self, task: str) -> list[StepRecord]:
        return await self._control.steps(task)

    async def signals(self, name: str | None = None, *, after: int = 0, limit: int = 100) -> list[SignalRecord]:
        return await self._control.signals(name, after=after, limit=limit)

    async def delete_signals(self, name: str, id: str | None = None) -> int:
        return await self._control.delete_signals(name, id)

    async def look_at_waits(self) -> Looked:
        return await self._control.look_at_waits()

    # ---- alerts ----

    async def alert_documents(self, kind: DocumentKind, names: Collection[str] | None = None) -> list[Document]:
        return await self._control.alert_documents(kind, names)

    async def change_alert_documents(self, changes: Sequence[DocumentChange]) -> bool:
        return await self._control.change_alert_documents(changes)
