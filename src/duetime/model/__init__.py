"""Rules without I/O: what a task is, where it may go, when it runs again."""
