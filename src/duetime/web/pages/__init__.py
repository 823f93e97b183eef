"""All pages, in the order of the navigation. A new page is a file here and a line below."""

from __future__ import annotations

from duetime.web.page import Page
from duetime.web.pages import (
    audit,
    calendar,
    failure,
    failures,
    find,
    forecast,
    handlers,
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
    failures.PAGE,
    failure.PAGE,
    schedules.PAGE,
    schedules.ONE,
    calendar.PAGE,
    forecast.PAGE,
    handlers.PAGE,
    handlers.ONE,
    submit.PAGE,
    workers.PAGE,
    workers.ONE,
    operations.PAGE,
    operations.NEW,
    audit.PAGE,
    settings.PAGE,
    find.PAGE,
)
