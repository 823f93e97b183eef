"""The proxy does to connections exactly what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import asyncpg
import pytest

from tests.servers.proxy import Cut, Proxy, Side
from tests.servers.running import postgres
from tests.servers.waiting import PATIENCE, wait_until
from tests.servers.wire import PostgresConversation


class Echo:
    """A server in a thread that says again whatever it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self.ends: list[type[BaseException] | None] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1_024):
                    self.heard += data
                    connection.sendall(data)
                self.ends.append(None)
            except OSError as error:
                self.ends.append(type(error))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with connect(proxy) as client:
        yield client


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=20)


def hear(client: socket.socket, count: int) -> bytes:
    """Receive so many bytes, or fewer if the connection ends before."""
    heard = b""
    while len(heard) < count and (data := client.recv(count - len(heard))):
        heard += data
    return heard


def say(client: socket.socket, words: bytes) -> bytes:
    client.sendall(words)
    return hear(client, len(words))


def nothing_to_hear(client: socket.socket) -> bool:
    """Tell whether neither a byte nor an end has arrived until now."""
    client.setblocking(False)
    try:
        return client.recv(1) is None
    except BlockingIOError:
        return True
    finally:
        client.settimeout(20)


def test_it_forwards_both_ways_and_counts(proxy: Proxy, client: socket.socket) -> None:
    words = bytes(range(256)) * 4_000
    threading.Thread(target=client.sendall, args=(words,), daemon=True).start()
    assert hear(client, len(words)) == words
    with connect(proxy) as second:
        assert say(second, b"hello") == b"hello"
        assert (proxy.accepted, proxy.live) == (2, 2)
    assert proxy.passed == {Side.CLIENT: len(words) + 5, Side.SERVER: len(words) + 5}
    wait_until("the closed connection is forgotten", lambda: proxy.live == 1)


def test_an_end_is_passed_on_while_the_other_side_may_still_speak(client: socket.socket, echo: Echo) -> None:
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert hear(client, 100) == b"last words"
    wait_until("the server has heard the end", lambda: echo.ends == [None])


def test_a_cut_by_rst_is_an_error_on_both_sides(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    say(client, b"hello")
    assert proxy.cut(Cut.RST) == 1
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    wait_until("the server has heard of it", lambda: echo.ends == [ConnectionResetError])
    with connect(proxy) as second:
        assert say(second, b"again") == b"again"


def test_a_cut_by_fin_is_an_end_on_both_sides(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    say(client, b"hello")
    assert proxy.cut(Cut.FIN) == 1
    assert client.recv(1) == b""
    wait_until("the server has heard the end", lambda: echo.ends == [None])
    assert proxy.cut() == 0


def test_a_refused_connection_is_refused_by_the_kernel_and_others_go_on(proxy: Proxy, client: socket.socket) -> None:
    say(client, b"hello")
    for _ in range(2):
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert say(client, b"still here") == b"still here"
        proxy.accept()
        with connect(proxy) as second:
            assert say(second, b"again") == b"again"


def test_a_server_that_is_down_resets_connections(proxy: Proxy, echo: Echo) -> None:
    echo.close()
    echo._listening = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


@pytest.mark.parametrize("side", Side)
def test_what_is_held_arrives_later(proxy: Proxy, client: socket.socket, echo: Echo, side: Side) -> None:
    proxy.hold([side])
    client.sendall(b"hello")
    if side is Side.SERVER:
        wait_until("the server has heard it", lambda: echo.heard == b"hello")
    assert nothing_to_hear(client)
    assert echo.heard == (b"" if side is Side.CLIENT else b"hello")
    proxy.heal()
    assert hear(client, 5) == b"hello"


def test_what_is_swallowed_never_arrives_while_the_connection_stays_open(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    say(client, b"before ")
    proxy.swallow([Side.SERVER])
    client.sendall(b"answered ")
    wait_until("the server has heard it", lambda: echo.heard == b"before answered ")
    proxy.swallow([Side.CLIENT])
    client.sendall(b"unheard")
    assert nothing_to_hear(client)
    assert (echo.heard, echo.ends, proxy.live) == (b"before answered ", [], 1)
    client.shutdown(socket.SHUT_WR)
    with connect(proxy) as second:
        wait_until("a second connection is there", lambda: proxy.live == 2)
        assert nothing_to_hear(second)
    assert echo.ends == []
    proxy.heal()
    with pytest.raises(ConnectionResetError):
        hear(client, 1)
    wait_until("the server is told", lambda: ConnectionResetError in echo.ends)


def test_a_delay_keeps_the_order(proxy: Proxy, client: socket.socket) -> None:
    proxy.delay(0.01)
    for number in range(5):
        client.sendall(b"%d" % number)
    assert hear(client, 5) == b"01234"


@pytest.mark.parametrize("count", [0, 1, 4, 7])
@pytest.mark.parametrize("how", Cut)
def test_a_connection_is_cut_after_exactly_so_many_bytes_of_the_server(proxy: Proxy, client: socket.socket, count: int, how: Cut) -> None:
    say(client, b"before")
    done = proxy.cut_after(count, Side.SERVER, how)
    client.sendall(b"0123456789")
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1):
            heard += data
    assert heard == b"0123456789"[:count]
    assert done.wait(PATIENCE)


@pytest.mark.parametrize("count", [0, 1, 4, 7])
def test_a_connection_is_cut_after_exactly_so_many_bytes_of_the_client(proxy: Proxy, client: socket.socket, echo: Echo, count: int) -> None:
    done = proxy.cut_after(count, Side.CLIENT)
    client.sendall(b"0123")
    client.sendall(b"456789")
    wait_until("the server has heard the end", lambda: echo.ends == [None])
    assert echo.heard == b"0123456789"[:count]
    assert done.wait(PATIENCE)
    with connect(proxy) as second:
        assert say(second, b"only one is cut") == b"only one is cut"


def test_a_reply_is_lost_after_the_server_got_the_request(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    done = proxy.lose_reply(b"claim", b"worker-7")
    assert say(client, b"claim for worker-1;") == b"claim for worker-1;"
    client.sendall(b"clai")
    wait_until("the first half has arrived", lambda: echo.heard.endswith(b"clai"))
    assert hear(client, 4) == b"clai"
    assert say(client, b"m for worker-7;") == b"m for worker-7;", "an answer came between"
    client.sendall(b"claim for worker-7;")
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert done.wait(PATIENCE)
    assert echo.heard.endswith(b"claim for worker-7;")


async def test_a_statement_of_postgresql_is_committed_while_its_reply_is_lost() -> None:
    server = postgres("postgres-18")
    with Proxy(server.port or 0, PostgresConversation) as proxy:
        observer = await asyncpg.connect(server.url())
        await observer.execute("drop table if exists lost_replies; create table lost_replies (number int, filler text)")
        insert = "insert into lost_replies select $1, repeat('x', 10000) from generate_series(1, 50) returning *"
        rows = 0
        for number in range(5):  # the first time the statement is prepared, later only named
            connection = await asyncpg.connect(server.url(port=proxy.port))
            for _ in range(number):
                await connection.fetch(insert, number)
                rows += 50
            await connection.execute("select 'no match'")
            done = proxy.lose_reply(b"lost_replies", number.to_bytes(4))
            with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionResetError)):
                await connection.fetch(insert, number)
            assert done.is_set()
            rows += 50
            assert await observer.fetchval("select count(*) from lost_replies") == rows
            connection.terminate()
        assert proxy.accepted == 5
        await observer.execute("drop table lost_replies")
        await observer.close()


async def test_a_client_of_postgresql_goes_on_after_cuts_and_holds() -> None:
    server = postgres("postgres-16")
    with Proxy(server.port or 0, PostgresConversation) as proxy:
        connection = await asyncpg.connect(server.url(port=proxy.port))
        proxy.hold()
        answer = asyncio.create_task(connection.fetchval("select 7"))
        done, _ = await asyncio.wait([answer], timeout=0.05)
        assert not done
        proxy.heal()
        assert await answer == 7
        proxy.cut(Cut.FIN)
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
            await connection.fetchval("select 7")
        connection.terminate()
        second = await asyncpg.connect(server.url(port=proxy.port))
        assert await second.fetchval("select 8") == 8
        await second.close()
