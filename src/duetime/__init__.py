"""Run work at the right time, at least once and never twice at once."""

from duetime.app.app import App
from duetime.app.handlers import Handler
from duetime.app.registry import Handlers
from duetime.client.client import Bulk
from duetime.client.gates import GateInfo, GateSet
from duetime.client.schedules.info import ScheduleInfo
from duetime.client.schedules.schedule import Schedule
from duetime.errors import (
    Conflict,
    DuetimeError,
    DuplicateKey,
    DuplicateKeys,
    Fatal,
    InvalidHandler,
    InvalidPayload,
    InvalidValue,
    NotAllowed,
    PayloadTooLarge,
    RetryLater,
    ScheduleNotFound,
    StoreUnavailable,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    UnknownHandler,
)
from duetime.model.retry import RetryPolicy
from duetime.model.rules import AfterEnd, At, Calendar, Cron, DayCalendar, Every, Window
from duetime.model.task import NewTask, State, Task
from duetime.model.why import Reason
from duetime.store.values import CancelVerdict
from duetime.targets.context import Context, current
from duetime.targets.occurrence import Occurrence
from duetime.targets.python.middleware import Next

__all__ = [
    "AfterEnd",
    "App",
    "At",
    "Bulk",
    "Calendar",
    "CancelVerdict",
    "Conflict",
    "Context",
    "Cron",
    "DayCalendar",
    "DuetimeError",
    "DuplicateKey",
    "DuplicateKeys",
    "Every",
    "Fatal",
    "GateInfo",
    "GateSet",
    "Handler",
    "Handlers",
    "InvalidHandler",
    "InvalidPayload",
    "InvalidValue",
    "NewTask",
    "Next",
    "NotAllowed",
    "Occurrence",
    "PayloadTooLarge",
    "Reason",
    "RetryLater",
    "RetryPolicy",
    "Schedule",
    "ScheduleInfo",
    "ScheduleNotFound",
    "State",
    "StoreUnavailable",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskNotFound",
    "UnknownHandler",
    "Window",
    "current",
]
