"""OpenTelemetry traces from submitting a task to its attempts: `duetime.tracing.trace(app)`.

    from duetime import App
    from duetime.tracing import trace

    app = App("sqlite:///duetime.db")
    trace(app)  # after the program has set its tracer provider

The trace travels in the task's meta, as `traceparent` and `tracestate`. The package opentelemetry-api is needed (`duetime[otel]`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from duetime.app.app import App
from duetime.errors import AttemptCancelled, Fatal, InvalidPayload, PayloadTooLarge, RetryLater
from duetime.model.outcome import Outcome
from duetime.model.task import NewTask, Task
from duetime.model.trace_context import TRACEPARENT
from duetime.targets.context import Context
from duetime.targets.python.middleware import Next
from duetime.worker.attempt import Interrupted

INSTALLED = find_spec("opentelemetry") is not None
if TYPE_CHECKING or INSTALLED:
    from opentelemetry.context import Context as Surroundings
    from opentelemetry.trace import ProxyTracerProvider, SpanKind, StatusCode, TracerProvider, get_tracer_provider, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SYSTEM = "duetime"


def trace(app: App, *, provider: TracerProvider | None = None) -> bool:
    """Make a span for each submit and each attempt of an App; return whether tracing is on.

    It stays off if opentelemetry-api is not installed, or if there is neither a tracer provider of the program nor `provider`; then it
    costs no time. A second call changes nothing.
    """
    if not INSTALLED:
        return False
    if provider is None:
        provider = get_tracer_provider()
        if isinstance(provider, ProxyTracerProvider):
            return False
    if not any(isinstance(getattr(layer, "__self__", None), Spans) for layer in app.middlewares):
        spans = Spans(provider)
        app.on_submit(spans.submitting)
        # before all others, so that their work belongs to the attempt too
        app.middlewares.insert(0, spans.attempting)
    return True


class Spans:
    """Makes the spans of one App."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer(SYSTEM)
        self._format = TraceContextTextMapPropagator()

    def submitting(self, task: NewTask[Any]) -> Mapping[str, str]:
        """Make the span of a submit, under the trace in the task's meta or else the present one; return the meta to add.

        It ends at once: what follows is the store's work, for one task or for thousands together.
        """
        given = task.meta or {}
        parent = self._format.extract(given) if TRACEPARENT in given else None
        attributes = _attributes("send", task.id, task.handler)
        span = self._tracer.start_span(f"submit {task.handler}", parent, SpanKind.PRODUCER, attributes)
        carried: dict[str, str] = {}
        self._format.inject(carried, set_span_in_context(span))
        span.end()
        return carried

    async def attempting(self, ctx: Context, call_next: Next) -> object:
        """Make the span of an attempt, under the span of its submit. A schedule's task begins its own trace."""
        task = ctx.task
        parent = Surroundings() if task.schedule is not None else self._format.extract(task.meta, Surroundings())
        attributes = _attributes("process", task.id, task.handler) | {"duetime.attempt": ctx.attempt, "duetime.lateness": _lateness(task)}
        with self._tracer.start_as_current_span(
            f"run {task.handler}", parent, SpanKind.CONSUMER, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                value = await call_next()
            except BaseException as error:
                outcome = _outcome(error, ctx)
                span.set_attribute("duetime.outcome", outcome.value)
                if outcome in _ERRORS:
                    span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:1_000])
                    if isinstance(error, Exception):
                        span.record_exception(error)
                raise
            span.set_attribute("duetime.outcome", Outcome.SUCCEEDED.value)
            return value


_ERRORS = frozenset({Outcome.FAILED, Outcome.FATAL, Outcome.TIMED_OUT})
_FATAL = (Fatal, InvalidPayload, PayloadTooLarge)


def _outcome(error: BaseException, ctx: Context) -> Outcome:
    """Return the outcome that an exception means here. The worker decides in the end, because it knows why it stopped an attempt."""
    if isinstance(error, Interrupted):
        return Outcome.TIMED_OUT
    if ctx.stopped_as is not None and isinstance(error, asyncio.CancelledError | AttemptCancelled):
        return ctx.stopped_as
    if isinstance(error, RetryLater):
        return Outcome.RETRY_LATER
    return Outcome.FATAL if isinstance(error, _FATAL) else Outcome.FAILED


def _attributes(operation: str, task_id: str, handler: str) -> dict[str, str | int | float]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": operation,
        "messaging.destination.name": handler,
        "messaging.message.id": task_id,
        "duetime.task": task_id,
        "duetime.handler": handler,
    }


def _lateness(task: Task[Any]) -> float:
    return 0.0 if task.started_at is None else max(0.0, (task.started_at - task.due_at).total_seconds())
