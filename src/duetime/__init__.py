"""Run work at the right time, at least once and never twice at once."""

from duetime.app import App
from duetime.client import Bulk
from duetime.errors import (
    Conflict,
    DuetimeError,
    DuplicateKey,
    DuplicateKeys,
    Fatal,
    InvalidHandler,
    InvalidPayload,
    InvalidValue,
    PayloadTooLarge,
    RetryLater,
    StoreUnavailable,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    UnknownHandler,
)
from duetime.gating import GateInfo, GateSet
from duetime.handlers import Handler
from duetime.model.retry import RetryPolicy
from duetime.model.task import NewTask, State, Task
from duetime.model.why import Reason
from duetime.registry import Handlers
from duetime.store.protocol import CancelVerdict
from duetime.targets.context import Context, current
from duetime.targets.python import Next

__all__ = [
    "App",
    "Bulk",
    "CancelVerdict",
    "Conflict",
    "Context",
    "DuetimeError",
    "DuplicateKey",
    "DuplicateKeys",
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
    "PayloadTooLarge",
    "Reason",
    "RetryLater",
    "RetryPolicy",
    "State",
    "StoreUnavailable",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskNotFound",
    "UnknownHandler",
    "current",
]
