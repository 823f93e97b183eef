"""All that a program can ask of a store: submit, read, change, gates, schedules, access and overviews."""
