"""What `duetime dev` serves when it is given no APP: three small handlers to try things with."""

from __future__ import annotations

import asyncio

from duetime import App, Context

app = App()


@app.task
async def greet(name: str) -> str:
    """Say hello."""
    print(f"hello {name}")
    return f"hello {name}"


@app.task
async def expire_order(order_id: int) -> str:
    """Do what a shop does with an order that nobody paid."""
    return f"order {order_id} expired, stock restored"


@app.task
async def slow(ctx: Context, seconds: float = 10) -> str:
    """Take a while, and report progress."""
    steps = 20
    for step in range(steps):
        await asyncio.sleep(seconds / steps)
        ctx.progress((step + 1) / steps, f"{step + 1} of {steps}")
    return f"done after {seconds:g} s"
