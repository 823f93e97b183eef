"""Notices of alerts: tasks of the handler `duetime.notify`, performed as mail and HTTP requests."""
