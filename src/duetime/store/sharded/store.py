"""The store over shards: roles composed, and the verbs that are control's own."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from duetime.clock import Instant
from duetime.model.sharding import ShardMap
from duetime.store import Store
from duetime.store.shard import Listener
from duetime.store.sharded.routing import MAP_LEASE, MakeStore
from duetime.store.sharded.sharing import Sharing
from duetime.store.sharded.working import Working
from duetime.store.traits import Traits
from duetime.store.values import Hint


class Listeners:
    """Subscriptions to the wake-ups of several stores."""

    def __init__(self, listeners: list[Listener]) -> None:
        self._listeners = listeners

    def close(self) -> None:
        for each in self._listeners:
            each.close()


class ControlVerbs:
    """Verbs that concern no shard: they are control's own, without a call in between."""

    def __init__(self, control: Store) -> None:
        # DisablingStore
        self.take_probe = control.take_probe
        self.put_off_probe = control.put_off_probe
        # LimitStore
        self.allot = control.allot
        self.put_limit = control.put_limit
        self.reset_limit = control.reset_limit
        self.limits = control.limits
        # ScheduleStore
        self.write_schedules = control.write_schedules
        self.due_schedules = control.due_schedules
        self.wake_schedules = control.wake_schedules
        self.schedules = control.schedules
        self.list_schedules = control.list_schedules
        self.skips = control.skips
        self.prune_skips = control.prune_skips
        self.put_calendar = control.put_calendar
        self.calendars = control.calendars
        self.take_duty = control.take_duty
        self.leave_duty = control.leave_duty
        self.duties = control.duties
        # AccessStore
        self.put_token = control.put_token
        self.tokens = control.tokens
        self.find_tokens = control.find_tokens
        self.remove_token = control.remove_token
        self.note_use = control.note_use
        self.put_session = control.put_session
        self.find_sessions = control.find_sessions
        self.renew_session = control.renew_session
        self.remove_session = control.remove_session
        self.add_audit = control.add_audit
        self.audit = control.audit
        self.prune_audit = control.prune_audit
        # SecretStore
        self.put_secret = control.put_secret
        self.secrets = control.secrets
        self.sealed_secrets = control.sealed_secrets
        self.reseal_secrets = control.reseal_secrets
        self.remove_secret = control.remove_secret
        self.prune_secrets = control.prune_secrets
        # ArtifactStore
        self.add_upload = control.add_upload
        self.upload = control.upload
        self.finish_upload = control.finish_upload
        self.artifacts = control.artifacts
        self.artifact = control.artifact
        self.remove_artifact = control.remove_artifact
        self.needs_blob = control.needs_blob
        self.ended_uploads = control.ended_uploads
        self.remove_uploads = control.remove_uploads
        # TargetStore
        self.put_target = control.put_target
        self.targets = control.targets
        self.target_versions = control.target_versions
        self.remove_target = control.remove_target
        self.shadow_targets = control.shadow_targets
        # RequestStore
        self.note_requests = control.note_requests
        self.correct_requests = control.correct_requests
        self.prune_requests = control.prune_requests
        # FigureStore
        self.add_figures = control.add_figures
        self.figures = control.figures
        self.fold_figures = control.fold_figures
        # OperationStore
        self.add_operation = control.add_operation
        self.operations = control.operations
        self.operation = control.operation
        self.save_operation = control.save_operation
        self.prune_operations = control.prune_operations
        # SeriesStore
        self.keep_sample = control.keep_sample
        self.last_sample = control.last_sample
        self.series = control.series
        self.fold_series = control.fold_series
        # FlowStore
        self.add_flow = control.add_flow
        self.add_flow_on = control.add_flow_on
        self.flows = control.flows
        self.flow_page = control.flow_page
        self.flow_counts = control.flow_counts
        self.flow_members = control.flow_members
        self.flow_values = control.flow_values
        self.flow_pieces = control.flow_pieces
        self.flow_of = control.flow_of
        self.save_pieces = control.save_pieces
        self.stop_flow = control.stop_flow
        self.retry_flow = control.retry_flow
        self.rerun_flow = control.rerun_flow
        self.advance_flows = control.advance_flows
        self.inspect_flows = control.inspect_flows
        self.prune_flows = control.prune_flows
        # EventStore
        self.pass_events = control.pass_events
        self.followers = control.followers
        self.leave_events = control.leave_events
        self.events = control.events
        self.prune_events = control.prune_events
        # LockStore
        self.take_lock = control.take_lock
        self.renew_lock = control.renew_lock
        self.free_lock = control.free_lock
        self.locks = control.locks
        self.remove_lock = control.remove_lock
        self.prune_locks = control.prune_locks
        # StepStore
        self.send_signals = control.send_signals
        self.send_signals_on = control.send_signals_on
        self.signals = control.signals
        self.delete_signals = control.delete_signals
        # AlertStore
        self.alert_documents = control.alert_documents
        self.change_alert_documents = control.change_alert_documents
        # CallersTransactions
        self.prepare = control.prepare
        # DeclarationStore
        self.declarations = control.declarations
        # GateStore
        self.gates = control.gates
        # LimitStore, of which no limit is counted by claims
        self.put_partition = control.put_partition
        self.partitions = control.partitions
        self.parked_under = control.parked_under
        self.look_at_limits = control.look_at_limits
        # WeightStore, QuotaStore, ServerStore
        self.weights = control.weights
        self.spend_quotas = control.spend_quotas
        self.beat_server = control.beat_server
        self.remove_server = control.remove_server
        self.servers = control.servers
        # Registering, of which control's are enough
        self.confirm_gates = control.confirm_gates
        self.note_lag = control.note_lag
        self.pull_worker = control.pull_worker
        # IntentStore
        self.carry_out = control.carry_out
        self.intents = control.intents


class ShardedStore(Working, Sharing, ControlVerbs):
    """Control and its shards behind the verbs of `duetime.store.Store`."""

    def __init__(self, control: Store, make: MakeStore, initial: ShardMap | None = None) -> None:
        super().__init__(control, make, initial)
        ControlVerbs.__init__(self, control)
        self.now: Callable[[], Instant] = control.now
        self._traits: Traits | None = None

    @property
    def url(self) -> str:
        return self.control.url

    @property
    def output_folder(self) -> str | None:
        return self.control.output_folder

    @property
    def traits(self) -> Traits:
        if self._traits is None:
            stores = [self.control, *(shard.opened for shard in self._shards.values() if shard.opened is not None)]
            self._traits = _together([store.traits for store in stores])
        return self._traits

    def reached(self) -> Instant:
        """What none of the clocks may still be short of: a task is not begun before its own shard's clock has reached its due time."""
        return min(store.reached() for store in self._open_stores())

    def _open_stores(self) -> list[Store]:
        return [self.control, *(shard.opened for shard in self._shards.values() if shard.opened is not None)]

    async def open(self, *, migrate: bool = True) -> None:
        await self.control.open(migrate=migrate)
        await self.read_map()

    async def close(self) -> None:
        self._read_at = -MAP_LEASE
        for shard in self._shards.values():
            await shard.close()
        await self.control.close()

    async def ping(self) -> None:
        await self.everywhere(lambda store: store.ping())

    def script(self) -> str:
        return self.control.script()

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        return Listeners([store.listen(on_hint) for store in self._open_stores()])


def _together(traits: list[Traits]) -> Traits:
    """Return what holds for several stores together."""
    first = traits[0]
    return msgspec.structs.replace(
        first,
        atomic="shard",
        durability=" ".join(dict.fromkeys(each.durability for each in traits)),
        liveness="lease" if any(each.liveness == "lease" for each in traits) else "lock",
        claim_ahead=max(each.claim_ahead for each in traits),
        settles_at_once=max(each.settles_at_once for each in traits),
        output_batch=min(each.output_batch for each in traits),
    )
