"""The handlers of `bench.everyday`: an app that sub-processes can import. Its store is the one of DUETIME_URL."""

from __future__ import annotations

from duetime import App, NewTask

RICH = "rich"
NOTE = "x" * 2_000

app = App()


@app.task
async def noop(number: int) -> None: ...


@app.task
def plain(number: int) -> None: ...


@app.task
async def prints(number: int) -> None:
    print(f"handled order {number} for somebody")


@app.task
def plain_prints(number: int) -> None:
    print(f"handled order {number} for somebody")


@app.task
async def rich(number: int, note: str) -> None: ...


@app.task(isolation="process")
def isolated(number: int) -> None: ...


def new(name: str, number: int, *, keyed: bool = False) -> NewTask[None]:
    """Return one task of a handler; a rich one has what a shop would give it."""
    if name == RICH:
        options = rich.options(
            key=f"order-{number}", collection=f"shop-{number % 20}", priority=number % 10, meta={"customer": str(number)}
        )
        return options.new(number=number, note=NOTE)
    handler = app.handler(name)
    return handler.options(key=f"order-{number}").new(number=number) if keyed else handler.new(number=number)
