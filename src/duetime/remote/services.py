"""The services of an App over a server."""

from __future__ import annotations

from duetime.client.services import Program, Services
from duetime.config import Config


def server_services(config: Config, program: Program) -> Services:
    """Return the services over a server; the first request connects."""
    from duetime.remote.alerts import RemoteAlerts, RemoteChannels
    from duetime.remote.artifacts import RemoteArtifacts
    from duetime.remote.client import RemoteClient
    from duetime.remote.doctor import RemoteDoctor
    from duetime.remote.events import RemoteEvents
    from duetime.remote.failures import RemoteFailures
    from duetime.remote.flows import RemoteFlows
    from duetime.remote.limits import RemoteLimits
    from duetime.remote.locks import RemoteLocks
    from duetime.remote.output import RemoteOutputs
    from duetime.remote.overview import RemoteInsight
    from duetime.remote.secrets import RemoteSecrets
    from duetime.remote.signals import RemoteSignals
    from duetime.remote.targets import RemoteTargets
    from duetime.remote.tokens import RemoteTokens
    from duetime.remote.transport import Transport
    from duetime.remote.weights import RemoteWeights

    transport = Transport(config.url, config.token)

    async def open(migrate: bool) -> None:
        """Do nothing: the first request connects."""

    return Services(
        url=transport.url,
        client=RemoteClient(transport, program),
        insight=RemoteInsight(transport),
        output=RemoteOutputs(transport, opened=program.opened),
        failures=RemoteFailures(transport, opened=program.opened),
        events=RemoteEvents(transport, opened=program.opened),
        locks=RemoteLocks(transport),
        signals=RemoteSignals(transport),
        limits=RemoteLimits(transport, opened=program.opened),
        weights=RemoteWeights(transport, opened=program.opened),
        secrets=RemoteSecrets(transport, opened=program.opened),
        artifacts=RemoteArtifacts(transport, opened=program.opened),
        targets=RemoteTargets(transport, opened=program.opened),
        flows=RemoteFlows(transport, opened=program.opened),
        alerts=RemoteAlerts(transport, opened=program.opened),
        channels=RemoteChannels(transport, opened=program.opened),
        tokens=RemoteTokens(transport, opened=program.opened),
        doctor=RemoteDoctor(transport, opened=program.opened),
        open=open,
        close=transport.close,
    )
