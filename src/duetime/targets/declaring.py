"""What a process declares of its handlers, and the digest by which declarations are told apart."""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

import msgspec

from duetime.errors import InvalidHandler
from duetime.model.outcome import Ended, Outcome
from duetime.store.values import Declaration
from duetime.targets.spec import HandlerSpec, Payloads

logger = logging.getLogger("duetime")


_known: WeakKeyDictionary[Payloads, Declaration] = WeakKeyDictionary()


def declaration_of(spec: HandlerSpec) -> Declaration:
    """Return what a process declares of a handler. Only upgrades can change after it was declared."""
    known = _known.get(spec.payloads)
    if known is None or known.upgrades != spec.payloads.upgrades():
        known = _known[spec.payloads] = _declaration(spec)
    return known


def _declaration(spec: HandlerSpec) -> Declaration:
    try:
        schema = spec.payloads.schema()
    except InvalidHandler as error:  # an error only matters once that handler is used
        logger.warning("handler %s is declared without a payload schema: %s", spec.name, error)
        schema = b"{}"
    return Declaration(
        name=spec.name,
        schema=schema,
        doc=spec.doc,
        timeout=spec.timeout,
        priority=spec.priority,
        concurrency=spec.concurrency,
        isolation=spec.target.kind,
        retry=spec.retry.numbers(),
        aliases=spec.aliases,
        upgrades=spec.payloads.upgrades(),
        keep=dict(spec.keep),
        reserve=dict(spec.reserve),
        fair=spec.fair is not None,
        quota=spec.quota,
        start_within=spec.start_within,
    )


def refused(ended: Ended, spec: HandlerSpec) -> Ended:
    """Return an end, with whose declaration refused the payload if it is parked."""
    if ended.outcome is not Outcome.PARKED:
        return ended
    return msgspec.structs.replace(ended, refused_by=declaration_of(spec).digest)
