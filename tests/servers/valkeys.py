"""Several Valkey servers together: a primary with replicas under Sentinels, and a cluster. Who fails is up to the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from tests.servers import processes
from tests.servers.brokers import BrokerServer, ValkeyServer, reachable, valkey_program
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until

SERVICE = "main"
DOWN_AFTER = 1_000  # milliseconds without an answer after which a server counts as down
SLOTS = 16_384
# a replica is fed at once, otherwise it counts as connected for five seconds and has nothing
REPLICATED = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


def ask(port: int, *words: Any) -> Any:
    """Send one command to a server and return its raw reply."""
    with Redis(port=port, socket_timeout=10) as client:
        return client.execute_command(*words)


def info(port: int, section: str) -> dict[str, str]:
    with Redis(port=port, socket_timeout=10) as client:
        return {name: str(value) for name, value in client.info(section).items()}


def _succeeds(condition: Callable[[], bool]) -> Callable[[], bool]:
    """Let a question that a server cannot answer yet count as no."""

    def tried() -> bool:
        with contextlib.suppress(RedisError):
            return condition()
        return False

    return tried


def feeds(primary: int, replica: int) -> bool:
    """Return whether a replica has all that its primary has, and goes on."""
    said = info(replica, "replication")
    return said["role"] == "slave" and int(said["master_port"]) == primary and said["master_link_status"] == "up"


class SentinelServer(BrokerServer):
    """One Sentinel, which watches a primary."""

    name = "sentinel"

    def __init__(self, primary: int, quorum: int) -> None:
        super().__init__()
        self._file = self.folder / "sentinel.conf"
        self._file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\nsentinel monitor {SERVICE} 127.0.0.1 {primary} {quorum}\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}\nsentinel failover-timeout {SERVICE} 5000\n"
        )
        processes.give_away(self._file)

    def command(self) -> Sequence[str | Path]:
        return [reachable(valkey_program()), self._file, "--sentinel"]


class Several:
    """Servers that start and end together."""

    def __init__(self) -> None:
        self._servers = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._servers.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._servers.close()

    def _start(self) -> None:
        raise NotImplementedError


class Watched(Several):
    """A primary with replicas, watched by three Sentinels. `settings` are of all servers."""

    def __init__(self, *settings: str, replicas: int = 1) -> None:
        super().__init__()
        self._settings = settings
        self._count = replicas
        self.servers: list[ValkeyServer] = []
        self.sentinels: list[SentinelServer] = []

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{sentinel.port}' for sentinel in self.sentinels)}/{SERVICE}"

    def _start(self) -> None:
        first = self._servers.enter_context(ValkeyServer(*REPLICATED, *self._settings))
        following = ("--replicaof", "127.0.0.1", str(first.port))
        replicas = [self._servers.enter_context(ValkeyServer(*REPLICATED, *self._settings, *following)) for _ in range(self._count)]
        self.servers = [first, *replicas]
        wait_until("the replicas are fed", _succeeds(lambda: all(feeds(first.port, replica.port) for replica in replicas)))
        self.sentinels = [self._servers.enter_context(SentinelServer(first.port, 2)) for _ in range(3)]
        wait_until("the Sentinels know each other and the replicas", _succeeds(lambda: all(map(self._knows_all, self.sentinels))))

    def _knows_all(self, sentinel: SentinelServer) -> bool:
        words = ask(sentinel.port, "SENTINEL", "MASTER", SERVICE)
        said = words if isinstance(words, dict) else dict(zip(words[::2], words[1::2], strict=True))
        facts = {_text(name): _text(value) for name, value in said.items()}
        return facts["num-other-sentinels"] == "2" and facts["num-slaves"] == str(self._count)

    def primary_by(self, sentinel: SentinelServer) -> int:
        """Return the port of the primary as a Sentinel has it."""
        return int(ask(sentinel.port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    @property
    def primary(self) -> ValkeyServer:
        port = self.primary_by(self.sentinels[0])
        return next(server for server in self.servers if server.port == port)

    def await_another(self, former: ValkeyServer) -> ValkeyServer:
        """Wait until most Sentinels name another primary, and it is one; return it."""

        def is_there() -> bool:
            ports = [self.primary_by(sentinel) for sentinel in self.sentinels]
            named = [port for port in ports if port != former.port]
            return len(named) >= 2 and info(named[0], "replication")["role"] == "master"

        wait_until("a replica has been promoted", _succeeds(is_there))
        port = next(port for port in map(self.primary_by, self.sentinels) if port != former.port)
        return next(server for server in self.servers if server.port == port)


class Cluster(Several):
    """Three primaries of a cluster, each with replicas or none."""

    def __init__(self, *settings: str, replicas: int = 0) -> None:
        super().__init__()
        self._settings = (*REPLICATED, *settings, "--cluster-enabled", "yes", "--cluster-node-timeout", str(DOWN_AFTER))
        self._count = replicas
        self.primaries: list[ValkeyServer] = []
        self.replicas: list[ValkeyServer] = []

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{server.port}' for server in self.primaries)}"

    @property
    def servers(self) -> list[ValkeyServer]:
        return [*self.primaries, *self.replicas]

    def _new(self) -> ValkeyServer:
        return self._servers.enter_context(ValkeyServer(*self._settings, "--cluster-port", str(free_port())))

    def _start(self) -> None:
        self.primaries = [self._new() for _ in range(3)]
        self.replicas = [self._new() for _ in range(3 * self._count)]
        for number, server in enumerate(self.primaries):
            first, last = number * SLOTS // 3, (number + 1) * SLOTS // 3 - 1
            ask(server.port, "CLUSTER", "ADDSLOTSRANGE", first, last)
            ask(server.port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            ask(self.primaries[0].port, "CLUSTER", "MEET", "127.0.0.1", server.port, server.settings[-1])
        wait_until("all have met", _succeeds(lambda: all(self._known_to(server) == len(self.servers) for server in self.servers)))
        for number, server in enumerate(self.replicas):
            ask(server.port, "CLUSTER", "REPLICATE", self.id_of(self.primaries[number % 3]))
        wait_until("the cluster is complete", _succeeds(self._is_complete))

    def _known_to(self, server: ValkeyServer) -> int:
        return int(self._state(server)["cluster_known_nodes"])

    def _state(self, server: ValkeyServer) -> dict[str, str]:
        said = ask(server.port, "CLUSTER", "INFO")
        if isinstance(said, dict):
            return {_text(name): _text(value) for name, value in said.items()}
        return dict(line.split(":", 1) for line in _text(said).split())

    def _is_complete(self) -> bool:
        return all(self._state(server)["cluster_state"] == "ok" for server in self.servers) and all(
            feeds(self.primaries[number % 3].port, server.port) for number, server in enumerate(self.replicas)
        )

    def id_of(self, server: ValkeyServer) -> str:
        return _text(ask(server.port, "CLUSTER", "MYID"))

    def owner(self, tag: str = "duetime", asked: ValkeyServer | None = None) -> ValkeyServer:
        """Return the server that has the slot of a hash tag, as one of them knows it."""
        slot = key_slot(f"{{{tag}}}".encode())
        with Redis(port=(asked or self.primaries[0]).port) as client:
            reply = client.execute_command("CLUSTER SLOTS", NEVER_DECODE=True)
        for entry in _slots(reply):
            if entry[0] <= slot <= entry[1]:
                return next(server for server in self.servers if server.port == entry[2])
        raise LookupError(slot)

    def await_another(self, former: ValkeyServer) -> ValkeyServer:
        """Wait until all others know another owner of our slot; return it."""
        others = [server for server in self.servers if server is not former]
        wait_until("a replica has been promoted", _succeeds(lambda: all(self.owner(asked=server).port != former.port for server in others)))
        return self.owner(asked=others[0])

    @contextlib.contextmanager
    def moving(self, target: ValkeyServer, tag: str = "duetime") -> Iterator[Move]:
        """Move the slot of a hash tag to another primary key by key, as administrators do it without a tool that does it at once."""
        slot, source = key_slot(f"{{{tag}}}".encode()), self.owner(tag)
        ask(target.port, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        ask(source.port, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        move = Move(slot, source, target)
        yield move
        while move.some_keys():
            pass
        for server in (target, source, *(other for other in self.primaries if other not in (target, source))):
            ask(server.port, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def move(self, target: ValkeyServer, tag: str = "duetime") -> None:
        with self.moving(target, tag):
            pass

    def move_at_once(self, target: ValkeyServer, tag: str = "duetime") -> None:
        """Move it by Valkey's own command, and return when it has arrived."""
        slot, source = key_slot(f"{{{tag}}}".encode()), self.owner(tag)
        ask(source.port, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id_of(target))
        wait_until("the slot has arrived", _succeeds(lambda: self.owner(tag, asked=target) is target))


class Move(NamedTuple):
    """A slot on its way."""

    slot: int
    source: ValkeyServer
    target: ValkeyServer

    def some_keys(self) -> int:
        """Move a few keys; return how many they were."""
        keys = ask(self.source.port, "CLUSTER", "GETKEYSINSLOT", self.slot, 3)
        if keys:
            ask(self.source.port, "MIGRATE", "127.0.0.1", self.target.port, "", 0, 10_000, "KEYS", *keys)
        return len(keys)


def _text(word: object) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def _slots(reply: Any) -> list[tuple[int, int, int]]:
    """Return first and last slot and the port of the primary, whether the driver has read the reply or not."""
    if isinstance(reply, dict):
        return [(first, last, each["primary"][1]) for (first, last), each in reply.items()]
    return [(each[0], each[1], each[2][1]) for each in reply]
