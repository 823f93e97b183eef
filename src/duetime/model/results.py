"""What the end of an awaited task means to who awaits it."""

from __future__ import annotations

from duetime.errors import TaskCancelled, TaskFailed
from duetime.model.task import State, TaskRecord


def succeeded_or_raise(record: TaskRecord) -> TaskRecord:
    """Return a final task if it succeeded; raise TaskFailed or TaskCancelled otherwise."""
    error = record.error
    match record.state:
        case State.SUCCEEDED:
            return record
        case State.CANCELLED:
            because = f": {error.message}" if error is not None and error.message else ""
            raise TaskCancelled(f"task {record.id} of {record.handler} was cancelled{because}", task_id=record.id)
        case state:
            how = f": {error.type}: {error.message}{f' ({error.location})' if error.location else ''}" if error else ""
            raise TaskFailed(
                f"task {record.id} of {record.handler} ended {state}{how}",
                task_id=record.id,
                state=state,
                error_type=error.type if error else None,
            )
