"""A server that fails at random, and workers that are killed while they wait for it: the server's own journal is the witness."""

import asyncio
import random
from collections import defaultdict

import pytest

from tests.chaos.fleet import Fleet
from tests.servers.http import Conversation, serving
from tests.servers.waiting import PATIENCE

TASKS = 1_000
KILLS = 4


class Journal:
    """What the server has seen. A request is open until it is answered or its client is gone."""

    def __init__(self) -> None:
        self.attempts: dict[str, list[int]] = defaultdict(list)
        self.overlaps: list[str] = []
        self._open: dict[str, asyncio.Event] = {}
        self._chance = random.Random()

    async def talk(self, conversation: Conversation) -> None:
        while (received := await conversation.request()) is not None:
            task = received.headers["duetime-task"]
            earlier, closed = self._open.get(task), asyncio.Event()
            self._open[task] = closed
            self.attempts[task].append(int(received.headers["duetime-fence"]))
            try:
                if earlier is not None and not await self._is_gone(earlier):
                    self.overlaps.append(task)
                leaving = asyncio.ensure_future(conversation.reader.read(1))
                if (await asyncio.wait({leaving}, timeout=self._chance.uniform(0, 0.1)))[0]:
                    return
                leaving.cancel()
                await asyncio.wait({leaving})
            finally:
                closed.set()
            match self._chance.random():
                case low if low < 0.15:
                    await conversation.answer(500)
                case low if low < 0.3:  # all is done, and nobody learns of it
                    conversation.writer.transport.abort()
                    return
                case _:
                    await conversation.answer(204)

    @staticmethod
    async def _is_gone(closed: asyncio.Event) -> bool:
        """Return whether the client of an earlier attempt goes without an answer: then it is dead, and the network only late to tell."""
        try:
            await asyncio.wait_for(closed.wait(), PATIENCE)
        except TimeoutError:
            return False
        return True


@pytest.mark.slow
async def test_each_task_arrives_with_growing_fences_and_never_twice_at_once(fleet: Fleet) -> None:
    journal, chance = Journal(), random.Random()
    async with serving(journal.talk) as server:
        environment = {"chaos_http": server.url("")}
        for _ in range(2):
            await fleet.start(app="tests.chaos.http_handlers:app", **environment)  # type: ignore[arg-type]
        tasks = await fleet.submit(fleet.new("deliver", number=number) for number in range(TASKS))
        for number in range(1, KILLS + 1):
            async with asyncio.timeout(PATIENCE):
                while len(journal.attempts) < TASKS * number // (KILLS + 1):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            chance.choice(fleet.alive).kill()
            await fleet.start(app="tests.chaos.http_handlers:app", ready=False, **environment)  # type: ignore[arg-type]
        await fleet.finish()
        states = await fleet.states()
    assert set(states.values()) == {"succeeded"}
    assert journal.attempts.keys() == {task.id for task in tasks}
    assert all(seen == sorted(set(seen)) for seen in journal.attempts.values()), "fences grow and none comes twice"
    assert max(map(len, journal.attempts.values())) > 1, "some were tried again"
    assert journal.overlaps == []
