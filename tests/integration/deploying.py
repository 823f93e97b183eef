"""A program of which many processes start at once: it declares three schedules, lets a worker run for a moment, and prints what ran."""

import asyncio
import sys

from duetime import App, Cron, Every

app = App(sys.argv[1]) if __name__ == "__main__" else App()


@app.schedule(cron="0 3 1 1 *", missed="all")
async def yearly() -> None: ...


@app.schedule(rule=Every(days=9_999), missed="all")
async def rarely() -> None: ...


@app.schedule(rule=Cron("0 4 29 2 *"), missed="all")
async def seldom() -> None: ...


async def main() -> None:
    async with app.worker():
        await app.schedules.declare()
        found = [f"{info.name}:{info.revision}" for info in await app.schedules.list()]
    print(*found)


if __name__ == "__main__":
    asyncio.run(main())
