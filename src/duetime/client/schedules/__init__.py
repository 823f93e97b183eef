"""The client of schedules: put, list, pause, trigger, preview, backfill, declare as code, forecast."""
