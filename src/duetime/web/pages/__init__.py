"""All pages, in the order of the navigation. A new page is a file here and a line below."""

from __future__ import annotations

from duetime.web.page import Page
from duetime.web.pages import (
    alerts,
    audit,
    calendar,
    events,
    failure,
    failures,
    find,
    flows,
    forecast,
    handlers,
    limits,
    locks,
    month,
    operations,
    overview,
    schedules,
    settings,
    submit,
    task,
    tasks,
    workers,
)

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    tasks.PAGE,
    task.PAGE,
    flows.PAGE,
    flows.ONE,
    failures.PAGE,
    failure.PAGE,
    schedules.PAGE,
    schedules.ONE,
    calendar.PAGE,
    month.PAGE,
    forecast.PAGE,
    handlers.PAGE,
    handlers.ONE,
    submit.PAGE,
    workers.PAGE,
    workers.ONE,
    operations.PAGE,
    operations.NEW,
    events.PAGE,
<<<<<<< HEAD
    limits.PAGE,
=======
    alerts.PAGE,
>>>>>>> main
    locks.PAGE,
    audit.PAGE,
    settings.PAGE,
    find.PAGE,
)
