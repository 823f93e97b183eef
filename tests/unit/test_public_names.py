"""The public surface, held in one place: a name is added here on purpose or not at all."""

import subprocess
import sys

import duetime

PUBLIC = """
    App Handler Handlers Context Next current ended asgi
    NewTask Task State RetryPolicy
    Schedule ScheduleInfo Occurrence
    Cron Every AfterEnd Calendar At Window DayCalendar occurrences Wheel Timer
    Sandbox Limit LimitInfo LimitNotFound LimitSet PartitionInfo Rate WeightsInfo Quota QuotaExceeded
    Fatal RetryLater DisableAfter
    Lock LockInfo LockLost LockNotFound LockTaken
    Event TaskEvent ScheduleEvent WorkerEvent GateEvent
    Flow FlowHandler Plan Node Group Results Condition any_of at_least FlowFailed FlowNotFound
    Alert AlertRule AlertRuleInfo AlertNotFound ChannelInfo ChannelNotFound Mail Webhook Slack
    Failing Disabled Late Slo Running Backlog Certificate Missed Deadline WorkerLost
    Basic Bearer Callback
    Secret SecretInfo SignalInfo SignalNotFound
    ArtifactInfo ArtifactNotFound
    StoredCommand StoredHttp StoredPublish TargetInfo
    CancelVerdict ChangeVerdict Bulk OperationInfo Failure FailureNotFound GateInfo GateSet Reason
    DuetimeError Conflict DuplicateKey DuplicateKeys InvalidHandler InvalidPayload InvalidStep InvalidValue PayloadTooLarge
    NotAllowed OperationNotFound ScheduleNotFound SecretNotFound SecretUnreadable StoreUnavailable TargetNotFound TaskCancelled TaskFailed
    TaskNotFound UnknownHandler WorkerNotFound
"""


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(duetime.__all__) == sorted(PUBLIC.split())
    assert all(hasattr(duetime, name) for name in duetime.__all__)


def test_every_public_class_says_what_it_is() -> None:
    undocumented = [name for name in duetime.__all__ if name != "Next" and not getattr(duetime, name).__doc__]
    assert not undocumented


def test_importing_duetime_brings_no_heavy_or_optional_package() -> None:
    heavy = {"pydantic", "click", "rich", "asyncpg", "redis", "aiohttp", "cryptography", "starlette", "duetime.worker.worker"}
    code = f"import duetime, sys; print(*({heavy!r} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
