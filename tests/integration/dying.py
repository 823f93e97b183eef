"""A handler whose sub-process dies with every attempt, in an App that such a process can import."""

import os

from duetime import App

app = App("sqlite:///:memory:")


def die() -> None:
    os._exit(9)


app.task(name="die", isolation="process")(die)
