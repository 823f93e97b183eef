"""The parts of a worker for the kit: the real ones, driven step by step instead of by background services."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from duetime.app.app import App
from duetime.clock import Instant
from duetime.model.outcome import Ended, Outcome
from duetime.model.retry import RetryPolicy
from duetime.model.steps import NewStep, StepRecord
from duetime.model.task import ErrorInfo
from duetime.runtime.service import Alarms
from duetime.secrets.reading import SecretReader
from duetime.store import Store
from duetime.store.values import ClaimedTask
from duetime.targets.host import TargetHost
from duetime.targets.http.callbacks import CallbackDoor
from duetime.targets.python.function import PythonFunction
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import Accepted, AttemptHandle, Stop, Target
from duetime.testing.messages import Messages
from duetime.testing.requests import Requests, TestArtifacts, TestCommands
from duetime.testing.stores import SteppedStore
from duetime.worker.attempt import Attempt
from duetime.worker.executor import Executor
from duetime.worker.queues import HandlerQueue
from duetime.worker.settler import Settler
from duetime.worker.step_door import AddTasks, WorkerDoor

_End = tuple[Ended | Accepted, BaseException | None]


class SteppedTarget:
    """A handler's own target, which first raises the failures that a test has injected."""

    direct_call = None

    def __init__(self, spec: HandlerSpec, own: Target, host: TargetHost, failures: deque[BaseException]) -> None:
        self._spec = spec
        self._own = own
        self._host = host
        self._failures = failures

    def perform(self, attempt: AttemptHandle) -> Coroutine[Any, Any, Ended | Accepted]:
        if not self._failures:
            return self._own.perform(attempt)
        raising = PythonFunction(function=_raising(self._failures.popleft()), takes_context=False, is_async=True)
        return raising.open(self._spec, self._host).perform(attempt)

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        return self._own.stop(attempt, reason)


class Died(BaseException):
    """Raised where the worker has died after a step was saved."""


class MortalDoor(WorkerDoor):
    """Saves steps, and lets the worker die afterwards where a test wants that."""

    def __init__(self, store: Store, worker: str, specs: Mapping[str, HandlerSpec], add: AddTasks, executor: SteppedExecutor) -> None:
        super().__init__(store, worker, specs, add)
        self._executor = executor

    async def save(self, step: NewStep) -> StepRecord | None:
        saved = await super().save(step)
        attempt = self._executor.running.get(step.task)
        death = (attempt.spec.name, step.name) if attempt is not None else None
        if death in self._executor.deaths:
            self._executor.deaths.remove(death)
            raise Died(f"the worker died after step {step.name!r}")
        return saved


class SteppedExecutor(Executor):
    """The real executor. It reports how each attempt ended, retries without jitter, and can inject faults."""

    def __init__(
        self,
        store: SteppedStore,
        alarms: Alarms,
        settler: Settler,
        requests: Requests,
        messages: Messages,
        secrets: SecretReader,
    ) -> None:
        super().__init__(
            store,
            {},
            alarms,
            TargetHost(secrets=secrets, callback_door=CallbackDoor("https://duetime.test", (b"a key of the testing kit",))),
            settler,
            concurrency=1 << 30,  # the slots of each handler are the limit
            output=None,  # what handlers print belongs to the test's output
            freed=lambda: None,
            stuck=self._give_up,
        )
        self.host.sender = requests.sender
        self.host.supervising = TestCommands(requests)
        self.host.artifacts = TestArtifacts()
        self.host.publisher = messages.publisher
        self.failures: dict[str, deque[BaseException]] = {}
        self.crashes: dict[str, int] = {}
        self.deaths: list[tuple[str, str]] = []  # of handlers, after a step
        self._ends: dict[str, asyncio.Future[_End]] = {}
        self._errors: dict[str, BaseException] = {}

    def learn(self, app: App) -> bool:
        """Add queues for new handlers; return whether there were any."""
        self.host.middleware = list(app.middlewares)
        new = [(name, spec) for name, spec in app.specs.items() if name not in self.queues.by_name]
        for name, spec in new:
            queue = next((queue for queue in self.queues.by_name.values() if queue.spec.name == spec.name), None)
            if queue is None:
                queue = HandlerQueue(spec, self._stepped(spec, _opened(spec, self.host)))
                queue.settles_directly = False  # `expect` must see every end
                self.queues.free += queue.concurrency  # a process has no more slots than its handlers, and this one began without any
            self.queues.by_name[name] = queue
            queue.names.setdefault(name, False)
        return bool(new)

    def serve(self, spec: HandlerSpec, target: Target, slots: int) -> None:
        super().serve(spec, self._stepped(spec, target), slots)
        self.queues.by_name[spec.name].settles_directly = False

    def _stepped(self, spec: HandlerSpec, own: Target) -> SteppedTarget:
        return SteppedTarget(spec, own, self.host, self.failures.setdefault(spec.name, deque()))

    def ready(self) -> Mapping[str, int]:
        """Return the handlers that have a free slot, and permits of their limits."""
        return {name: 1 for name, queue in self.queues.by_name.items() if queue.startable > 0}

    def expect(self, claimed: ClaimedTask) -> asyncio.Future[_End]:
        """Start an attempt. The future is set when the settler has its outcome."""
        self._ends[claimed.id] = end = asyncio.get_running_loop().create_future()
        self.offer([claimed])
        return end

    def release(self, task_id: str) -> None:
        """Stop an attempt that nobody waits for any more. Its task goes back."""
        attempt = self.running.get(task_id)
        if attempt is not None:
            self.stop(attempt, Stop.RELEASE)

    def _policy(self, attempt: Attempt) -> RetryPolicy:
        return msgspec.structs.replace(super()._policy(attempt), jitter=0.0)

    def _ended_by(self, attempt: Attempt, error: BaseException) -> Ended:
        self._errors[attempt.claimed.id] = error
        return super()._ended_by(attempt, error)

    def _conclude(self, attempt: Attempt, ended: Ended | Accepted, started_at: Instant | None, now: Instant | None = None) -> None:
        task_id, name = attempt.claimed.id, attempt.spec.name
        error = self._errors.pop(task_id, None)
        crashed = isinstance(error, Died)
        if crashed or (self.crashes.get(name, 0) and started_at is not None):
            self.crashes[name] = self.crashes.get(name, 0) - (not crashed)
            died = ErrorInfo("WorkerDied", f"the worker died while it ran this task: crash_next({name})")
            ended, error = Ended(Outcome.LOST, error=died, crashed=True, alone=True), None
        super()._conclude(attempt, ended, started_at, now)
        end = self._ends.pop(task_id, None)
        if end is not None and not end.done():
            end.set_result((ended, error))

    def _give_up(self, attempt: Attempt) -> None:
        end = self._ends.pop(attempt.claimed.id, None)
        if end is not None and not end.done():
            end.set_exception(RuntimeError(f"an attempt of {attempt.spec.name} was told to stop but its code does not end"))


def _opened(spec: HandlerSpec, host: TargetHost) -> Target:
    own = spec.target
    if isinstance(own, PythonFunction):
        # a child process would import another copy of the app, with another store
        own = msgspec.structs.replace(own, isolation="auto")
    return own.open(spec, host)


def _raising(error: BaseException) -> Callable[..., Coroutine[Any, Any, None]]:
    async def handler(*args: object, **kwargs: object) -> None:
        raise error

    return handler
