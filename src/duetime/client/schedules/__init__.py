"""Schedules as programs and people handle them: put, list, pause, trigger, preview, backfill, declare as code, forecast."""
