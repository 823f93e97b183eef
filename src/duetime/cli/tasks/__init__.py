"""Commands about tasks: submit, list, read logs, change."""
