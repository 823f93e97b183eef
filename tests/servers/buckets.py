"""A real server that speaks S3 and checks signatures, of a test's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.servers.brokers import BrokerServer, reachable
from tests.servers.ports import free_port

KEY, SECRET = "test-key", "test-secret-of-the-bucket"


class SeaweedServer(BrokerServer):
    """SeaweedFS with all its parts in one process. A bucket is made when something is first written to it."""

    name = "s3"

    def __init__(self, port: int | None = None) -> None:
        super().__init__(port)
        self._ports = {f"{part}.port{kind}": free_port() for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")}
        self._ports["s3.port"] = self.port

    def command(self) -> Sequence[str | Path]:
        identities = self.folder / "identities.json"
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": actions}
        identities.write_text(json.dumps({"identities": [identity]}))
        return [
            *(reachable(Path(sys.executable).parent / "weed"), "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-s3", "-s3.iam=false", f"-s3.config={identities}", *(f"-{name}={port}" for name, port in self._ports.items())),
            # others have fixed ports, of which two servers cannot both have one
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=5", "-master.volumeSizeLimitMB=64"),
            "-master.telemetry=false",  # it would report to its makers
        ]

    def kill(self) -> None:
        super().kill()
        for port in self._ports.values():  # it has sockets in /tmp too, whatever TMPDIR says
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of a program that uses it has."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
