"""The guard of HTTP handlers at real sockets: only loopback is ever reached, and what is refused gets no packet."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from duetime import App
from duetime.config import load
from duetime.model.addresses import AddressRules
from duetime.targets.http.guard import AddressRefused, GuardedConnector
from duetime.targets.http.lookups import Lookups
from tests.servers.waiting import PATIENCE
from tests.unit.test_addresses import INSIDE

pytestmark = pytest.mark.usefixtures("no_proxy")
OUTSIDE = "127.0.0.2"  # stands for a public address: allowed by name, while the rest of loopback is not


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Sink:
    """An HTTP server that counts connections and answers each request alike."""

    def __init__(self) -> None:
        self.connections: list[str] = []
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer.get_extra_info("sockname")[0])
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    served = Sink()
    server = await asyncio.start_server(served, "0.0.0.0", 0)
    served.port = server.sockets[0].getsockname()[1]
    async with server:
        yield served


class Names:
    """A name server of our own: each name has a list of answers, of which the last one is repeated."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    def __call__(self, host: str, port: object, **options: Any) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        name = host.removesuffix(".")
        if name not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        given = self.answers[name]
        addresses = given.pop(0) if len(given) > 1 else given[0]
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (each, 0, 0, 0))
            if ":" in each
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0))
            for each in addresses
        ]


@asynccontextmanager
async def session(
    rules: AddressRules,
    names: Callable[..., list[tuple[Any, ...]]] = socket.getaddrinfo,
    *,
    trusted: Iterable[tuple[str, int]] = (),
    opened: list[str] | None = None,
    **options: Any,
) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session that reaches loopback only, whatever the guard says: anything else ends the test."""

    def on_socket(address: str, port: int) -> None:
        if opened is not None:
            opened.append(address)
        assert address.startswith("127."), f"{address} would have been reached"

    lookups = Lookups(names)
    connector = GuardedConnector(rules, lookups, trusted=trusted, on_socket=on_socket, **options)
    async with aiohttp.ClientSession(connector=connector) as client:
        yield client
    await lookups.close()


async def fetch(client: aiohttp.ClientSession, url: str) -> int:
    async with asyncio.timeout(PATIENCE), client.get(url) as response:
        await response.read()
        return response.status


def allowing(text: str) -> AddressRules:
    return load({"http_allow": text}, {}).addresses()


# ---- what is refused ----

LITERALS = [address for address, _ in INSIDE if "%" not in address]


@pytest.mark.parametrize("address", LITERALS)
async def test_an_address_inside_is_refused_at_the_socket_as_a_literal_and_as_an_answer(address: str, sink: Sink) -> None:
    opened: list[str] = []
    host = f"[{address}]" if ":" in address else address
    async with session(AddressRules(), Names(evil_example=[[address]]), opened=opened) as client:
        for url in (f"http://{host}:{sink.port}/", f"http://evil.example:{sink.port}/", f"http://evil.example.:{sink.port}/"):
            with pytest.raises(AddressRefused, match=f"port {sink.port}: .*DUETIME_HTTP_ALLOW"):
                await fetch(client, url)
    assert (opened, sink.connections) == ([], [])


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "0x7f000001",
        "127.0.0.1.",
        "localhost",
        "localhost.",
        "LOCALHOST",
        "0",
        "user@127.0.0.1",
        "\uff11\uff12\uff17.0.0.1",
        "127\u30020\u30020\u30021",
        "[::ffff:127.0.0.1]",
        "[::1%25lo]",
        "a..example",
    ],
)
async def test_an_unusual_spelling_of_this_machine_never_connects(host: str, sink: Sink) -> None:
    opened: list[str] = []
    async with session(AddressRules(), Names(localhost=[["::1", "127.0.0.1"]]), opened=opened) as client:
        with pytest.raises((AddressRefused, aiohttp.InvalidURL, aiohttp.ClientConnectorDNSError)):
            await fetch(client, f"http://{host}:{sink.port}/")
    assert (opened, sink.connections) == ([], [])


async def test_a_refusal_says_host_address_and_reason(sink: Sink) -> None:
    async with session(AddressRules(), Names(evil_example=[["127.0.0.1"]])) as client:
        with pytest.raises(AddressRefused) as refused:
            await fetch(client, f"http://evil.example:{sink.port}/")
    assert str(refused.value) == (
        f"evil.example:{sink.port} is refused: 127.0.0.1 port {sink.port}: it is a loopback address; "
        "if it is meant, name 127.0.0.1 in DUETIME_HTTP_ALLOW"
    )


async def test_a_port_of_another_protocol_is_refused_before_the_name_is_looked_up() -> None:
    names = Names(shop_example=[[OUTSIDE]])
    async with session(allowing(OUTSIDE), names) as client:
        with pytest.raises(AddressRefused, match="port 6379 belongs to a service that does not speak HTTP"):
            await fetch(client, "http://shop.example:6379/")
    assert names.asked == []


async def test_a_public_address_of_this_machine_is_refused_where_its_own_server_listens(sink: Sink) -> None:
    config = load({"http_allow": "127.0.0.0/8"}, {})
    opened: list[str] = []
    async with session(config.addresses(own=[("0.0.0.0", sink.port)]), opened=opened) as client:
        with pytest.raises(AddressRefused, match="a server of this very process listens there"):
            await fetch(client, f"http://127.0.0.1:{sink.port}/")
    assert (opened, sink.connections) == ([], [])


# ---- names that lead elsewhere ----


async def test_a_name_that_leads_inside_the_second_time_is_refused_then(sink: Sink) -> None:
    names = Names(evil_example=[[OUTSIDE], ["127.0.0.1"]])
    async with session(allowing(OUTSIDE), names, use_dns_cache=False, force_close=True) as client:
        assert await fetch(client, f"http://evil.example:{sink.port}/") == 200
        with pytest.raises(AddressRefused, match=r"127\.0\.0\.1"):
            await fetch(client, f"http://evil.example:{sink.port}/")
    assert (names.asked, sink.connections) == (["evil.example"] * 2, [OUTSIDE])


@pytest.mark.parametrize("answer", [[OUTSIDE, "127.0.0.1"], ["127.0.0.1", OUTSIDE], ["::1", "10.0.0.1", OUTSIDE, "127.0.0.1"]])
async def test_of_several_answers_only_what_is_allowed_is_connected_to(answer: list[str], sink: Sink) -> None:
    opened: list[str] = []
    async with session(allowing(OUTSIDE), Names(evil_example=[answer]), opened=opened) as client:
        assert await fetch(client, f"http://evil.example:{sink.port}/") == 200
    assert set(opened) == set(sink.connections) == {OUTSIDE}


async def test_if_the_allowed_answer_does_not_connect_the_others_are_still_refused(sink: Sink) -> None:
    opened: list[str] = []
    with socket.socket() as unused:  # bound and not listening: connections are refused by the kernel
        unused.bind((OUTSIDE, 0))
        port = unused.getsockname()[1]
        async with session(allowing(OUTSIDE), Names(evil_example=[["127.0.0.1", OUTSIDE, "::1"]]), opened=opened) as client:
            with pytest.raises(aiohttp.ClientConnectorError):
                await fetch(client, f"http://evil.example:{port}/")
    assert set(opened) == {OUTSIDE}


async def test_every_hop_of_a_redirect_is_judged(sink: Sink) -> None:
    async with session(allowing(OUTSIDE), Names(shop_example=[[OUTSIDE]])) as client:
        for there in (
            "http://169.254.169.254/latest",
            f"http://127.0.0.1:{sink.port}/",
            f"http://[::ffff:7f00:1]:{sink.port}/",
            f"http://{OUTSIDE}:22/",
        ):
            sink.answer = f"HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
            sink.connections.clear()
            with pytest.raises(AddressRefused):
                await fetch(client, f"http://shop.example:{sink.port}/")
            assert sink.connections == [OUTSIDE]


# ---- what is trusted ----


async def test_a_host_in_code_is_trusted_for_exactly_its_host_and_port(sink: Sink) -> None:
    names = Names(sidecar=[["127.0.0.1"]], other=[["127.0.0.1"]])
    async with session(AddressRules(), names, trusted=[("Sidecar", sink.port)]) as client:
        assert await fetch(client, f"http://sidecar:{sink.port}/") == 200
        for url in (f"http://other:{sink.port}/", f"http://127.0.0.1:{sink.port}/", f"http://sidecar:{sink.port + 1}/"):
            with pytest.raises(AddressRefused):
                await fetch(client, url)
    assert len(sink.connections) == 1


async def test_the_switch_of_dev_allows_loopback(sink: Sink) -> None:
    async with session(load({}, {}).addresses(loopback=True)) as client:
        assert await fetch(client, f"http://127.0.0.1:{sink.port}/") == 200


async def test_concurrent_requests_do_not_borrow_each_others_trust(sink: Sink) -> None:
    names = Names(sidecar=[["127.0.0.1"]], other=[["127.0.0.1"]])
    async with session(AddressRules(), names, trusted=[("sidecar", sink.port)]) as client:
        ends = await asyncio.gather(
            *(fetch(client, f"http://{host}:{sink.port}/") for host in ["sidecar", "other"] * 20), return_exceptions=True
        )
    assert ends[::2] == [200] * 20
    assert [type(end) for end in ends[1::2]] == [AddressRefused] * 20


async def test_a_worker_gives_its_targets_the_rules_of_the_settings() -> None:
    app = App("sqlite:///:memory:", http_allow="10.20.0.0/16")
    async with app.worker() as worker:
        assert worker.executor.host.addresses == app.config.addresses()
    rules = app.config.addresses(loopback=True)
    async with app.worker(addresses=rules) as worker:
        assert worker.executor.host.addresses == rules


# ---- name servers ----


async def test_a_name_server_that_never_answers_holds_one_thread_per_name_and_others_are_answered(sink: Sink) -> None:
    silent = threading.Event()
    names = Names(shop_example=[[OUTSIDE]])
    stuck: list[str] = []

    def lookup(host: str, port: object, **options: Any) -> list[tuple[Any, ...]]:
        if host == "dead.example":
            stuck.append(host)
            silent.wait(PATIENCE)
        return names(host, port, **options)

    lookups = Lookups(lookup, threads=2, within=0.2)
    try:
        ends = await asyncio.gather(*(lookups.resolve("dead.example", 80) for _ in range(200)), return_exceptions=True)
        assert all(isinstance(end, socket.gaierror) and "did not answer for dead.example within 0.2 s" in str(end) for end in ends)
        assert stuck == ["dead.example"]
        lookups._within = PATIENCE
        assert [each["host"] for each in await lookups.resolve("shop.example", 80)] == [OUTSIDE]
        assert await asyncio.get_running_loop().run_in_executor(None, lambda: "free") == "free"  # the loop's own executor is untouched
    finally:
        silent.set()
        await lookups.close()


async def test_lookups_run_in_a_bounded_number_of_threads_and_those_nobody_waits_for_are_left_out() -> None:
    silent, asked, threads = threading.Event(), list[str](), set[int]()

    def lookup(host: str, port: object, **options: Any) -> list[tuple[Any, ...]]:
        asked.append(host)
        threads.add(threading.get_ident())
        silent.wait(PATIENCE)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (OUTSIDE, 0))]

    impatient = Lookups(lookup, threads=3, within=0.2)
    ends = await asyncio.gather(*(impatient.resolve(f"{number}.example") for number in range(50)), return_exceptions=True)
    assert all(isinstance(end, socket.gaierror) for end in ends)
    assert (len(asked), len(threads)) == (3, 3)
    silent.set()
    impatient._within = PATIENCE
    assert [each["host"] for each in await impatient.resolve("last.example")] == [OUTSIDE]
    assert (len(asked), asked[-1], len(threads)) == (4, "last.example", 3)
    await impatient.close()


async def test_a_silent_name_server_is_told_as_a_failure_of_the_lookup() -> None:
    silent = threading.Event()

    def lookup(*given: object, **options: object) -> list[tuple[Any, ...]]:
        silent.wait(PATIENCE)
        return []

    lookups = Lookups(lookup, within=0.1)
    async with aiohttp.ClientSession(connector=GuardedConnector(AddressRules(), lookups)) as client:
        with pytest.raises(aiohttp.ClientConnectorDNSError, match=r"did not answer for dead\.example within 0\.1 s"):
            await fetch(client, "http://dead.example/")
    silent.set()
    await lookups.close()
