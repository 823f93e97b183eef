"""The services that an App uses: over a store, or over a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from duetime.artifacts.blobs import Blobs
from duetime.client.access.service import Tokens
from duetime.client.access.tokens import LocalTokens
from duetime.client.admission import SubmitHook
from duetime.client.alerts.alerts import Alerts, LocalAlerts
from duetime.client.alerts.channels import Channels, LocalChannels
from duetime.client.artifacts import Artifacts, LocalArtifacts
from duetime.client.client import Client
from duetime.client.doctor import Doctor, LocalDoctor
from duetime.client.events import EventSource, LocalEvents
from duetime.client.failures import Failures, LocalFailures
from duetime.client.flows import Flows, LocalFlows
from duetime.client.insight import Insight, LocalInsight
from duetime.client.limits import Limits, LocalLimits
from duetime.client.local import LocalClient
from duetime.client.locks import LockDoor
from duetime.client.operations import Perform
from duetime.client.output import LocalOutputs, Outputs
from duetime.client.schedules.schedule import Schedule
from duetime.client.secrets import LocalSecrets, Secrets
from duetime.client.signals import SignalDoor
from duetime.client.targets import LocalTargets, Targets
from duetime.client.weights import LocalWeights, Weights
from duetime.runtime.service import Service
from duetime.secrets.keys import KeyRing
from duetime.store import Store
from duetime.targets.spec import HandlerSpec


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What services know of the program that uses them. `opened` opens the store, unless it is open."""

    user: str
    specs: Mapping[str, HandlerSpec]
    hooks: Sequence[SubmitHook]
    opened: Callable[[], Awaitable[None]]
    revision: int
    declared: Callable[[], Sequence[Schedule]]


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The services of one store or server. `open` takes whether to migrate; without a `store`, `url` is a server."""

    url: str
    client: Client
    insight: Insight
    output: Outputs
    failures: Failures
    events: EventSource
    locks: LockDoor
    signals: SignalDoor
    limits: Limits
    weights: Weights
    secrets: Secrets
    artifacts: Artifacts
    targets: Targets
    flows: Flows
    alerts: Alerts
    channels: Channels
    tokens: Tokens
    doctor: Doctor
    open: Callable[[bool], Awaitable[None]]
    close: Callable[[], Awaitable[None]]
    store: Store | None = None


def local_services(
    store: Store,
    program: Program,
    *,
    keys: KeyRing | None,
    blobs: Callable[[], Blobs | None],
    artifact_cap: int,
    output: str | None,
    output_cap: int,
    lease: float,
    reaper: Callable[[], Service],
    perform: Perform | None = None,
) -> Services:
    """Return the services over a store; nothing is opened yet. The doctor reaps dead workers with a reaper of its own."""
    client = LocalClient(
        store,
        user=program.user,
        specs=program.specs,
        hooks=program.hooks,
        opened=program.opened,
        revision=program.revision,
        declared=program.declared,
        perform=perform,
    )
    insight = LocalInsight(store)
    limits = LocalLimits(store, user=program.user, opened=program.opened)
    secrets = LocalSecrets(store, keys, user=program.user, opened=program.opened)
    artifacts = LocalArtifacts(store, blobs, cap=artifact_cap, user=program.user, opened=program.opened)
    return Services(
        url=store.url,
        client=client,
        insight=insight,
        output=LocalOutputs(store, setting=output, cap=output_cap, opened=program.opened),
        failures=LocalFailures(store, user=program.user, opened=program.opened),
        events=LocalEvents(store, opened=program.opened),
        locks=store,
        signals=store,
        limits=limits,
        weights=LocalWeights(store, user=program.user, opened=program.opened),
        secrets=secrets,
        artifacts=artifacts,
        targets=LocalTargets(store, user=program.user, specs=program.specs, client=client, opened=program.opened),
        flows=LocalFlows(store, client.admission, why=insight.why, user=program.user, opened=program.opened),
        alerts=LocalAlerts(store, user=program.user, opened=program.opened),
        channels=LocalChannels(store, client, user=program.user, opened=program.opened),
        tokens=LocalTokens(store, user=program.user, opened=program.opened),
        doctor=LocalDoctor(
            store,
            gates=client.gates,
            limits=limits,
            insight=insight,
            secrets=secrets,
            artifacts=artifacts,
            output=output,
            lease=lease,
            reaper=reaper,
            opened=program.opened,
        ),
        open=lambda migrate: store.open(migrate=migrate),
        close=store.close,
        store=store,
    )
