"""Rules: when a schedule's occurrences are planned. A rule does not depend on the present time.

A rule is a value: `Cron`, `Every`, `AfterEnd`, `Calendar`, `At`, `Window`, or a `Union` of them, written with `|`. A `DayCalendar` is a
named set of days and hours that several rules can share. `plan_of` joins them into a `Plan`, which computes instants.
"""

from duetime.model.rules.calendars import DayCalendar
from duetime.model.rules.kinds import AfterEnd, At, Calendar, Cron, Every, Rule, Union, Window
from duetime.model.rules.library import occurrences
from duetime.model.rules.plan import Plan, plan_of
from duetime.model.rules.text import describe, read_rule

__all__ = [
    "AfterEnd",
    "At",
    "Calendar",
    "Cron",
    "DayCalendar",
    "Every",
    "Plan",
    "Rule",
    "Union",
    "Window",
    "describe",
    "occurrences",
    "plan_of",
    "read_rule",
]
