"""The timeline of a task: what took longer is drawn wider, in numbers and in a real browser."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.async_api import Browser

from duetime import App, RetryPolicy
from duetime.clock import to_datetime
from duetime.web import assets
from duetime.web.timeline import MOST_ATTEMPTS, WIDEST, segments, share
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader

durations = st.floats(0.000_001, 1e9)


@given(one=durations, other=durations, third=durations)
def test_the_longest_is_the_widest_and_nothing_longer_is_narrower(one: float, other: float, third: float) -> None:
    shorter, longer, longest = sorted((one, other, third))
    assert 1 <= share(shorter, longest) <= share(longer, longest) <= share(longest, longest) == WIDEST


@pytest.mark.parametrize("longest", [0.127, 60, 86_400, 30 * 86_400])
def test_a_wait_of_127_ms_is_wider_than_an_attempt_of_389_microseconds_beside_anything(longest: float) -> None:
    assert share(0.127, longest) > share(0.000_389, longest)


def test_every_width_has_a_class() -> None:
    css = (Path(assets.__file__).parent / "assets" / "app.css").read_text()
    assert {int(n) for n, w in re.findall(r"\.w(\d+) \{ --w: (\d+); \}", css) if n == w} == set(range(1, WIDEST + 1))


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
async def test_a_browser_draws_what_took_longer_wider_also_when_there_are_many_attempts(
    browser: Browser, ui: Reader, app: App, width: int
) -> None:
    @app.task(name="flaky", retry=RetryPolicy.ladder(*[0.002, 0.2] * MOST_ATTEMPTS))
    async def flaky() -> None:
        if len(ran) < 2 * MOST_ATTEMPTS:
            ran.append(1)
            raise ValueError("not yet")

    ran: list[int] = []
    task = await app.handler("flaky").now()
    async with app.worker(grace=0.1):
        await app.result(task, timeout=PATIENCE)
    drawn = segments(await app.get(task.id), await app.insight.attempts(task.id), to_datetime(app.store.now()))
    assert len(drawn) == 2 * MOST_ATTEMPTS
    assert drawn[0].name == "attempt 1 to 9", "what is not shown is neither called a wait nor late"
    page = await browser.new_page(viewport={"width": width, "height": 900})
    await page.goto(f"{ui.url}/ui/tasks/{task.id}")
    widths = await page.evaluate("[...document.querySelectorAll('.timeline i')].map((bar) => bar.getBoundingClientRect().width)")
    assert len(widths) == len(drawn)
    by_time = sorted(zip((each.share for each in drawn), widths, strict=True))
    assert by_time[0][0] < by_time[-1][0] == WIDEST
    for (less, narrow), (more, wide) in pairwise(by_time):
        assert wide > narrow if more > less else abs(wide - narrow) < 0.1, by_time
