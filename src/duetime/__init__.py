"""Run work at the right time, at least once and never twice at once."""

from duetime import starting as _starting  # noqa: F401  first: it handles a signal that arrives during all other imports
from duetime.app.app import App
from duetime.app.flows import FlowHandler, Group, Node, Plan, any_of, at_least
from duetime.app.handlers import Handler
from duetime.app.registry import Handlers
from duetime.client.alerts.alerts import Alert, AlertRuleInfo
from duetime.client.alerts.channels import ChannelInfo
from duetime.client.artifacts import ArtifactInfo
from duetime.client.client import Bulk
from duetime.client.failures import Failure
from duetime.client.flows import Flow
from duetime.client.gates import GateInfo, GateSet
from duetime.client.limits import LimitInfo, LimitSet, PartitionInfo
from duetime.client.locks import Lock, LockInfo
from duetime.client.operations import OperationInfo
from duetime.client.schedules.info import ScheduleInfo
from duetime.client.schedules.schedule import Schedule
from duetime.client.secrets import SecretInfo
from duetime.client.signals import SignalInfo
from duetime.client.targets import TargetInfo
from duetime.client.weights import WeightsInfo
from duetime.errors import (
    AlertNotFound,
    ArtifactNotFound,
    ChannelNotFound,
    Conflict,
    DuetimeError,
    DuplicateKey,
    DuplicateKeys,
    FailureNotFound,
    Fatal,
    FlowFailed,
    FlowNotFound,
    InvalidHandler,
    InvalidPayload,
    InvalidStep,
    InvalidValue,
    LimitNotFound,
    LockLost,
    LockNotFound,
    LockTaken,
    NotAllowed,
    OperationNotFound,
    PayloadTooLarge,
    QuotaExceeded,
    RetryLater,
    ScheduleNotFound,
    SecretNotFound,
    SecretUnreadable,
    SignalNotFound,
    StoreUnavailable,
    TargetNotFound,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    UnknownHandler,
    WorkerNotFound,
)
from duetime.model.alerts.conditions import (
    Backlog,
    Certificate,
    Deadline,
    Disabled,
    Failing,
    Late,
    Missed,
    Running,
    Slo,
    WorkerLost,
)
from duetime.model.alerts.rule import AlertRule
from duetime.model.disabling import DisableAfter
from duetime.model.event import Event, GateEvent, ScheduleEvent, TaskEvent, WorkerEvent
from duetime.model.flow import Condition
from duetime.model.limit import Limit, Rate
from duetime.model.needs import ended
from duetime.model.quota import Quota
from duetime.model.retry import RetryPolicy
from duetime.model.rules import AfterEnd, At, Calendar, Cron, DayCalendar, Every, Window, occurrences
from duetime.model.secrets import Secret
from duetime.model.task import NewTask, State, Task
from duetime.model.why import Reason
from duetime.mounting import asgi
from duetime.runtime.wheel import Timer, Wheel
from duetime.store.values import CancelVerdict, ChangeVerdict
from duetime.targets.command.command import Sandbox
from duetime.targets.context import Context, current
from duetime.targets.http.auth import Basic, Bearer
from duetime.targets.http.callbacks import Callback
from duetime.targets.notices.channels import Mail, Slack, Webhook
from duetime.targets.occurrence import Occurrence
from duetime.targets.python.middleware import Next
from duetime.targets.stored.definitions import StoredCommand, StoredHttp, StoredPublish
from duetime.targets.streams import Results

__all__ = [
    "AfterEnd",
    "Alert",
    "AlertNotFound",
    "AlertRule",
    "AlertRuleInfo",
    "App",
    "ArtifactInfo",
    "ArtifactNotFound",
    "At",
    "Backlog",
    "Basic",
    "Bearer",
    "Bulk",
    "Calendar",
    "Callback",
    "CancelVerdict",
    "Certificate",
    "ChangeVerdict",
    "ChannelInfo",
    "ChannelNotFound",
    "Condition",
    "Conflict",
    "Context",
    "Cron",
    "DayCalendar",
    "Deadline",
    "DisableAfter",
    "Disabled",
    "DuetimeError",
    "DuplicateKey",
    "DuplicateKeys",
    "Event",
    "Every",
    "Failing",
    "Failure",
    "FailureNotFound",
    "Fatal",
    "Flow",
    "FlowFailed",
    "FlowHandler",
    "FlowNotFound",
    "GateEvent",
    "GateInfo",
    "GateSet",
    "Group",
    "Handler",
    "Handlers",
    "InvalidHandler",
    "InvalidPayload",
    "InvalidStep",
    "InvalidValue",
    "Late",
    "Limit",
    "LimitInfo",
    "LimitNotFound",
    "LimitSet",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockNotFound",
    "LockTaken",
    "Mail",
    "Missed",
    "NewTask",
    "Next",
    "Node",
    "NotAllowed",
    "Occurrence",
    "OperationInfo",
    "OperationNotFound",
    "PartitionInfo",
    "PayloadTooLarge",
    "Plan",
    "Quota",
    "QuotaExceeded",
    "Rate",
    "Reason",
    "Results",
    "RetryLater",
    "RetryPolicy",
    "Running",
    "Sandbox",
    "Schedule",
    "ScheduleEvent",
    "ScheduleInfo",
    "ScheduleNotFound",
    "Secret",
    "SecretInfo",
    "SecretNotFound",
    "SecretUnreadable",
    "SignalInfo",
    "SignalNotFound",
    "Slack",
    "Slo",
    "State",
    "StoreUnavailable",
    "StoredCommand",
    "StoredHttp",
    "StoredPublish",
    "TargetInfo",
    "TargetNotFound",
    "Task",
    "TaskCancelled",
    "TaskEvent",
    "TaskFailed",
    "TaskNotFound",
    "Timer",
    "UnknownHandler",
    "Webhook",
    "WeightsInfo",
    "Wheel",
    "Window",
    "WorkerEvent",
    "WorkerLost",
    "WorkerNotFound",
    "any_of",
    "asgi",
    "at_least",
    "current",
    "ended",
    "occurrences",
]
