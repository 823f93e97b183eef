"""What runs beside the requests of an API: the duties, the metrics of this process, and the notes of when tokens were used."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence

from duetime.api.access import OpenOnLoopback
from duetime.api.app import Api
from duetime.api.duties import performing
from duetime.client.access.tokens import UseNotes
from duetime.client.servers import Beats, this_server
from duetime.errors import StoreUnavailable
from duetime.model.figures import STORE_ERRORS, FigureKey
from duetime.runtime.service import Alarms, Service
from duetime.store.timing import timing_of
from duetime.worker.metrics import Counting, FigureWriter

_logger = logging.getLogger("duetime.api")


@contextlib.asynccontextmanager
async def beside(api: Api, *, tokens: bool, url: str | None = None) -> AsyncIterator[None]:
    """Run all of it as long as the block lasts; the App must be open.

    `url` is where the server is reached. `tokens`: every request needs one. Otherwise everything is allowed to everybody, which is good
    for a server on loopback only.
    """
    duties: list[Service] = []
    async with (
        _with_tokens(api) if tokens else _without_tokens(api),
        _timed(api),
        _known(api, url),
        _counting(api, duties),
        performing(api.shared.app) as performed,
    ):
        duties += performed
        api.shared.pulses += [duty.pulse for duty in duties]
        yield


@contextlib.asynccontextmanager
async def _timed(api: Api) -> AsyncIterator[None]:
    """Count how long the store's verbs take in this process, from now on."""
    api.shared.figures.timing = timing_of(api.shared.app.store)
    yield


@contextlib.asynccontextmanager
async def _without_tokens(api: Api) -> AsyncIterator[None]:
    api.access = OpenOnLoopback(api.shared.app.user)
    yield


@contextlib.asynccontextmanager
async def _with_tokens(api: Api) -> AsyncIterator[None]:
    """Record the uses of tokens."""
    app = api.shared.app
    app.client.admission.suggests = False  # a token may be for some handlers, and must not learn of others
    alarms = Alarms()
    notes = UseNotes(app.tokens, alarms)
    api.shared.pulses.append(notes.pulse)
    notes.start()
    try:
        yield
    finally:
        await notes.stop()
        alarms.close()
        app.client.admission.suggests = True
        try:
            await app.tokens.note_uses()
        except StoreUnavailable as error:
            _logger.warning("the last uses of tokens could not be written: %s", error)


@contextlib.asynccontextmanager
async def _known(api: Api, url: str | None) -> AsyncIterator[None]:
    """Make the server known as long as the block lasts."""
    alarms = Alarms()
    beats = Beats(api.shared.app.store, this_server(url), alarms)
    api.shared.pulses.append(beats.pulse)
    beats.start()
    try:
        yield
    finally:
        await beats.stop()
        alarms.close()
        with contextlib.suppress(StoreUnavailable):
            await beats.leave()


@contextlib.asynccontextmanager
async def _counting(api: Api, duties: Sequence[Service]) -> AsyncIterator[None]:
    """Write the metrics of pull workers and duties as long as the block lasts, and the rest at its end."""

    def totals() -> dict[FigureKey, int]:
        counted = api.shared.pull.totals()
        counted[FigureKey(STORE_ERRORS)] = sum(duty.pulse.store_errors for duty in duties)
        for duty in duties:
            if isinstance(duty, Counting):
                counted |= duty.totals()
        return counted

    alarms = Alarms()
    writer = FigureWriter(api.shared.app.store, f"server {secrets.token_hex(8)}", alarms, totals)
    api.shared.pulses.append(writer.pulse)
    writer.start()
    try:
        yield
    finally:
        await writer.stop()
        alarms.close()
        with contextlib.suppress(StoreUnavailable):
            await writer.write()
