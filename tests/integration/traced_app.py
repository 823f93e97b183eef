"""An app that is traced, with a handler for each way to run; imported by tests and by the sub-processes of its worker.

Spans go to the file that SPANS names, one line each, because those of a sub-process cannot be had in any other way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from duetime import App, Context, RetryPolicy
from duetime.tracing import trace


class ToFile(SpanExporter):
    """Writes each span as a line; a file that is open for appending takes whole lines from several processes."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with open(os.environ["SPANS"], "a", encoding="utf-8") as file:
            file.writelines(json.dumps(described(span)) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


def described(span: ReadableSpan) -> dict[str, Any]:
    assert span.context is not None
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": f"{span.context.trace_id:032x}",
        "id": f"{span.context.span_id:016x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "status": span.status.status_code.name,
        "attributes": dict(span.attributes or {}),
        "pid": os.getpid(),
    }


provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(ToFile()))

app = App("sqlite:///:memory:", user="anna@shop")
is_traced = trace(app, provider=provider)


def inner(name: str) -> None:
    """Make a span as a handler's own library would."""
    with otel.get_tracer("library", tracer_provider=provider).start_as_current_span(name):
        pass


@app.task
async def in_loop() -> None:
    inner("inside the loop")


@app.task
def in_thread() -> None:
    inner("inside the thread")


@app.task(isolation="process")
def in_process() -> int:
    inner("inside the process")
    return os.getpid()


@app.task(retry=RetryPolicy(tries=3, base=0, jitter=0))
async def flaky(ctx: Context) -> str:
    if ctx.attempt < 3:
        raise ValueError("not yet")
    return "at last"
