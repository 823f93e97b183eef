"""Handlers that print until there is a file, so that everything a worker makes can be looked at."""

from __future__ import annotations

import time
from pathlib import Path

from duetime import App

app = App()


def _talk(until: str) -> None:
    while not Path(until).exists():
        print("a secret", flush=True)
        time.sleep(0.01)


@app.task
def talk_in_a_thread(until: str) -> None:
    _talk(until)


@app.task(isolation="process")
def talk_in_a_process(until: str) -> None:
    _talk(until)
