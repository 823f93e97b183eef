"""What control does: everything that is not about tasks on their way is asked of the SQL store."""

from __future__ import annotations

from duetime.clock import Clock
from duetime.store import Store
from duetime.store.redis.address import Address
from duetime.store.redis.database import OpenServer


class Controlled(OpenServer):
    """The verbs of control that know nothing of tasks."""

    def __init__(self, address: Address, control: Store, clock: Clock | None) -> None:
        super().__init__(address, control, clock)
        # control
        self.declarations = control.declarations
        self.gates = control.gates
        # disabling
        self.take_probe = control.take_probe
        self.put_off_probe = control.put_off_probe
        # limits
        self.allot = control.allot
        self.put_limit = control.put_limit
        self.reset_limit = control.reset_limit
        self.partitions = control.partitions
        # weights, quotas, servers
        self.weights = control.weights
        self.spend_quotas = control.spend_quotas
        self.beat_server = control.beat_server
        self.remove_server = control.remove_server
        self.servers = control.servers
        self.limits = control.limits
        # schedules
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
        # access
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
        # secrets
        self.put_secret = control.put_secret
        self.secrets = control.secrets
        self.sealed_secrets = control.sealed_secrets
        self.reseal_secrets = control.reseal_secrets
        self.remove_secret = control.remove_secret
        self.prune_secrets = control.prune_secrets
        # artifacts
        self.add_upload = control.add_upload
        self.upload = control.upload
        self.finish_upload = control.finish_upload
        self.artifacts = control.artifacts
        self.artifact = control.artifact
        self.remove_artifact = control.remove_artifact
        self.needs_blob = control.needs_blob
        self.ended_uploads = control.ended_uploads
        self.remove_uploads = control.remove_uploads
        # targets
        self.targets = control.targets
        self.target_versions = control.target_versions
        # figures
        self.add_figures = control.add_figures
        self.figures = control.figures
        self.fold_figures = control.fold_figures
        # operations
        self.add_operation = control.add_operation
        self.operations = control.operations
        self.operation = control.operation
        self.save_operation = control.save_operation
        self.prune_operations = control.prune_operations
        # series
        self.keep_sample = control.keep_sample
        self.last_sample = control.last_sample
        self.series = control.series
        self.fold_series = control.fold_series
        # failures
        self.failures = control.failures
        self.failure = control.failure
        self.mute_failure = control.mute_failure
        self.fold_failures = control.fold_failures
        self.prune_failures = control.prune_failures
        # flows
        self.flows = control.flows
        self.flow_page = control.flow_page
        self.flow_counts = control.flow_counts
        self.flow_members = control.flow_members
        self.flow_values = control.flow_values
        self.flow_pieces = control.flow_pieces
        self.flow_of = control.flow_of
        self.advance_flows = control.advance_flows
        self.inspect_flows = control.inspect_flows
        self.prune_flows = control.prune_flows
        # events
        self.pass_events = control.pass_events
        self.followers = control.followers
        self.leave_events = control.leave_events
        self.events = control.events
        self.prune_events = control.prune_events
        # locks
        self.take_lock = control.take_lock
        self.renew_lock = control.renew_lock
        self.free_lock = control.free_lock
        self.locks = control.locks
        self.remove_lock = control.remove_lock
        self.prune_locks = control.prune_locks
        # steps
        self.steps = control.steps
        self.signals = control.signals
        self.delete_signals = control.delete_signals
        self.look_at_waits = control.look_at_waits
        # alerts
        self.alert_documents = control.alert_documents
        self.change_alert_documents = control.change_alert_documents
