"""One task: why it is where it is first, then its timeline, attempts, output, payload and result."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from duetime.api.flows import may_see_flow
from duetime.client.client import task_not_found
from duetime.client.output import OutputEnd
from duetime.clock import SECOND, to_datetime
from duetime.errors import ChangedMeanwhile, FlowNotFound, InvalidValue
from duetime.ids import is_id
from duetime.model.access import AuditOutcome, Scope
from duetime.model.flow import FLOW, NODE
from duetime.model.query import Query
from duetime.model.query_text import write_query
from duetime.model.task import COPY_OF, FINAL, State, TaskRecord, shown
from duetime.model.trace_context import trace_id
from duetime.store.values import CancelVerdict
from duetime.web.page import Action, Done, Page, View
from duetime.web.pages.tasks import read_duration, read_json, read_number
from duetime.web.performing import phases_of
from duetime.web.timeline import segments
from duetime.web.visit import Visit
from duetime.web.words import json_text

MOST_ATTEMPTS = 50
MOST_LINES = 2_000
MOST_CHARACTERS = 100_000  # of an attempt's output on the page; the file has all of it
LONGEST_LINE = 20_000
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


async def found_record(visit: Visit) -> TaskRecord:
    """Return the task in the address; one that the person may not see is answered as one that does not exist."""
    record = await visit.app.client.record(visit.path["id"])
    if not visit.may_see(record.handler):
        raise task_not_found(visit.path["id"])
    return record


async def view(visit: Visit) -> View:
    record = await found_record(visit)
    task = visit.hiding.of_task(shown(record))
    hides = task.payload != shown(record).payload
    insight = visit.app.insight
    reasons = await insight.why(record, may_see=visit.may_see)
    attempts = await insight.attempts(record.id, after=max(0, record.attempt - MOST_ATTEMPTS))
    outputs = await visit.app.output.ends(record.id, attempts=5, size=MOST_CHARACTERS)
    acts = await visit.app.tokens.audit.list(subject=record.id, limit=10) if visit.may("admin") else None
    final, may_operate = record.state in FINAL, visit.may("operate", record.handler)
    facts = {
        "task": task,
        "final": final,
        "reasons": reasons,
        "segments": segments(task, attempts, to_datetime(visit.now)),
        "attempts": [(each, phases_of(each)) for each in reversed(attempts)],
        "outputs": [_shown_end(each) for each in reversed(outputs) if each.text],
        "payload": json_text(task.payload),
        "hides": hides,
        "flow": await _flow_of(visit, task.meta.get(FLOW, "")),
        "node": task.meta.get(NODE, ""),
        "meta": _meta(task.meta),
        "origin": task.meta.get(COPY_OF, ""),
        "same_key": write_query(Query(handler=task.handler, key=task.key)) if task.key else "",
        "trace": _trace(visit.app.config.trace_url, task.meta),
        "result": json_text(task.result) if record.result is not None else None,
        "acts": [] if acts is None else acts.items,
        "tag": _tag(record),
        "may_cancel": may_operate and not final and not record.cancelling,
        "may_retry": may_operate and final and record.state is not State.SUCCEEDED,
        "may_edit": may_operate and (record.state in (State.PENDING, State.BLOCKED) or (final and record.state is not State.SUCCEEDED)),
        "may_copy": visit.may("submit", record.handler),
        "may_delete": may_operate and record.state is not State.RUNNING,
        "command": f"duetime submit {shlex.quote(record.handler)} --payload {shlex.quote(msgspec.json.encode(task.payload).decode())}",
    }
    every = None if final and record.finished_at is not None and visit.now - record.finished_at > 15 * SECOND else 1.0
    return View(title=f"{record.handler} {record.id[:8]}", facts=facts, crumbs=(("/tasks", "Tasks"),), every=every)


def _trace(template: str | None, meta: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the id of a task's trace and where it is shown; None if it has none, or nobody has said where."""
    found = trace_id(meta)
    return (found, template.replace("{trace}", found)) if found and template else None


def _meta(meta: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what has no place of its own on the page."""
    told = (COPY_OF, FLOW, NODE) if is_id(meta.get(FLOW, "")) else (COPY_OF,)
    return [(name, value) for name, value in meta.items() if name not in told]


async def _flow_of(visit: Visit, flow: str) -> str:
    """Return the flow of a task if the person may see it: its name would tell of others' handlers."""
    if not is_id(flow):
        return ""
    if not visit.caller.handlers:
        return flow
    with contextlib.suppress(FlowNotFound):
        return flow if may_see_flow(visit.call, await visit.app.flows.get(flow)) else ""
    return ""


def _hides(visit: Visit, record: TaskRecord) -> bool:
    """Return whether parts of the payload are hidden from the person, who then cannot write it as a whole."""
    return visit.hiding.of(record).payload != record.payload


def _tag(record: TaskRecord) -> str:
    return hashlib.blake2b(msgspec.json.encode(shown(record)), digest_size=12).hexdigest()


def plain_lines(text: str) -> tuple[list[str], int]:
    """Return the last lines of an output as plain text, and how many before them are left out. Colours and cursor moves are removed."""
    lines = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")).splitlines()
    kept, size = 0, 0
    for line in reversed(lines[-MOST_LINES:]):
        size += len(line) + 1
        if size > MOST_CHARACTERS and kept:
            break
        kept += 1
    last = [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in lines[len(lines) - kept :]]
    return last, len(lines) - kept


def _shown_end(output: OutputEnd) -> tuple[int, list[str], int]:
    """Return the attempt, its last lines, and about how many bytes come before them."""
    lines, left_out = plain_lines(output.text)
    shown_size = sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)
    return output.attempt, lines, max(0, output.before + len(output.text.encode()) - shown_size) if output.before or left_out else 0


# ---- actions ----


async def _allowed(visit: Visit) -> TaskRecord:
    record = await found_record(visit)
    visit.allow(Scope.OPERATE, record.handler)
    return record


async def cancel(visit: Visit) -> Done:
    async with visit.acting("tasks.cancel", visit.path["id"]) as act:
        record = await _allowed(visit)
        verdict = await visit.app.client.cancel(record.id)
        act.detail = verdict.value
        act.outcome = AuditOutcome.REFUSED if verdict is CancelVerdict.FINISHED else AuditOutcome.DONE
    said = {
        CancelVerdict.CANCELLED: "Cancelled: it will not start.",
        CancelVerdict.CANCELLING: "It runs and was told to stop; it ends when its code does.",
        CancelVerdict.FINISHED: "Too late: it had ended already.",
    }
    return Done(said=said.get(verdict, verdict.value), good=verdict is not CancelVerdict.FINISHED)


async def retry(visit: Visit) -> Done:
    async with visit.acting("tasks.retry", visit.path["id"]):
        record = await _allowed(visit)
        await visit.app.client.retry(record.id)
    return Done(said="It runs again: same id, attempt numbers go on.")


async def delete(visit: Visit) -> Done:
    async with visit.acting("tasks.delete", visit.path["id"]):
        record = await _allowed(visit)
        await visit.app.client.delete(record.id)
    return Done(said=f"Task {record.id} was deleted, with its attempts and logs.", to=visit.link("tasks"))


async def edit(visit: Visit) -> Done:
    """Change what was filled in. Refused if the task has changed since the form was shown."""
    changes: dict[str, Any] = {}
    if visit.field("delay"):
        changes["delay"] = read_duration(visit.field("delay"))
    if visit.field("priority"):
        changes["priority"] = read_number(visit.field("priority"), "priority")
    if visit.field("collection"):
        changes["collection"] = visit.field("collection")
    async with visit.acting("tasks.edit", visit.path["id"]) as act:
        record = await _allowed(visit)
        if visit.field("payload") and not _hides(visit, record):
            payload = read_json(visit.field("payload"), "payload")
            if not isinstance(payload, dict):
                raise InvalidValue("payload must be a JSON object")
            if payload != shown(record).payload:
                changes["payload"] = payload
        changes = {name: value for name, value in changes.items() if name in ("delay", "payload") or value != getattr(record, name)}
        if not changes:
            raise InvalidValue("nothing was changed: fill in a field")
        if visit.form.get("tag") and visit.form["tag"] != _tag(record):
            raise ChangedMeanwhile("the task has changed since this form was shown; look at it, then try again")
        await visit.app.client.edit(record.id, seen=record, **changes)
        act.detail = ", ".join(name if name == "payload" else f"{name} {value}" for name, value in changes.items())
    return Done(said=f"Changed: {act.detail}.")


async def copy(visit: Visit) -> Done:
    """Submit the same task once more, with the payload of the form."""
    record = await found_record(visit)
    visit.allow(Scope.SUBMIT, record.handler)
    payload = None if _hides(visit, record) else read_json(visit.needed("payload"), "payload")
    if payload is not None and not isinstance(payload, dict):
        raise InvalidValue("payload must be a JSON object")
    task = await visit.app.client.copy(record.id, payload=payload, submitted_by=visit.caller.submitted_by)
    return Done(said=f"A copy was submitted: this is task {task.id}.", to=visit.link("tasks", task.id))


PAGE = Page(
    path="/tasks/{id}",
    template="task.html",
    view=view,
    actions={
        "cancel": Action(run=cancel),
        "retry": Action(run=retry),
        "edit": Action(run=edit),
        "delete": Action(run=delete),
        "copy": Action(run=copy, scope=Scope.SUBMIT),
    },
)
