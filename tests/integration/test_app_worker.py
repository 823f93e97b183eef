"""A worker inside a program: which handlers it has, and how children find the App."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from duetime import App, Context, InvalidHandler, UnknownHandler
from tests.servers.waiting import PATIENCE

if TYPE_CHECKING:
    from fractions import Fraction

SHOP = """
import os
from duetime import App, Context

app = App({url!r}, imports=["shop_more"])

@app.task(isolation="process")
def where(ctx: Context, number: int) -> list[int]:
    ctx.progress(0.5)
    return [os.getpid(), number]
"""

MORE = """
from shop import app

@app.task(isolation="process")
async def elsewhere() -> int:
    import os
    return os.getpid()
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    (tmp_path / "shop.py").write_text(SHOP.format(url=f"sqlite:///{tmp_path}/duetime.db"))
    (tmp_path / "shop_more.py").write_text(MORE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("shop").app
    for name in ("shop", "shop_more"):
        sys.modules.pop(name, None)


async def test_children_find_the_app_and_its_imports_by_themselves(shop: App) -> None:
    assert "shop_more" not in sys.modules
    async with shop.worker():
        pid, number = await shop.result(await shop.handler("where").now(number=7), timeout=PATIENCE)
        assert (pid != os.getpid(), number) == (True, 7)
        assert await shop.result(await shop.handler("elsewhere").now(), timeout=PATIENCE) != os.getpid()


async def test_modules_are_imported_by_the_worker_and_not_by_a_client(shop: App) -> None:
    async with shop:
        assert [handler.name for handler in await shop.handlers()] == ["where"]
    async with shop.worker():
        assert [declared.name for declared in await shop.store.declarations()] == ["elsewhere", "where"]


async def test_an_annotation_that_cannot_be_resolved_stops_the_worker_and_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    app = App("sqlite:///:memory:")

    @app.task
    async def fine(number: int) -> None: ...

    @app.task
    async def broken(ctx: Context, value: "Fraction") -> None: ...

    async with app:
        await fine.now(number=1)
        assert "broken is declared without a payload schema" in caplog.text
        with pytest.raises(InvalidHandler, match="'Fraction' of value cannot be resolved"):
            async with app.worker():
                pass
        async with app.worker(handlers=[fine]):
            pass


async def test_a_worker_for_a_handler_that_the_app_does_not_have_is_refused() -> None:
    app = App("sqlite:///:memory:")
    with pytest.raises(UnknownHandler, match="this App declares no handler 'zzz'; it declares none"):
        async with app.worker(handlers=["zzz"]):
            pass
