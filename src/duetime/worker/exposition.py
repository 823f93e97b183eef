"""A worker's own metrics in Prometheus's text format, written without its library, which only servers need.

The names begin with `duetime_worker_`: what servers show of the whole store must not be added to what each of its workers shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from duetime.model.figures import (
    ATTEMPTS,
    BLOCKED_LOOPS,
    DURATION,
    LATENESS,
    LEASE_LOSSES,
    RETRIES,
    STALE_WRITES,
    STORE_ERRORS,
    TASKS_FAILED,
    FigureKey,
    distributions,
)
from duetime.store.timing import BUCKETS, VerbTimes
from duetime.worker.health import WorkerHealth

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_OF_PROCESS = (
    ("stale_writes", "Outcomes that were refused because the task was no longer this worker's.", STALE_WRITES),
    ("lease_losses", "Times that it stopped all its attempts because it could not renew its lease.", LEASE_LOSSES),
    ("store_errors", "Turns of its loops that failed because the store did not answer.", STORE_ERRORS),
    ("blocked_loops", "Times that a handler blocked its event loop for a second or longer.", BLOCKED_LOOPS),
)
_BY_HANDLER = (
    ("retries", "Attempts that used up a try and are tried again.", RETRIES),
    ("tasks_failed", "Tasks that ended failed.", TASKS_FAILED),
)
_SPREADS = (
    ("lateness_seconds", "From the due time to the start of an attempt.", LATENESS),
    ("duration_seconds", "From the start of an attempt to its end.", DURATION),
)

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]  # the suffix of the name, labels, value


def exposition(*, ready: bool, health: WorkerHealth | None, totals: Mapping[FigureKey, int], times: Mapping[str, VerbTimes] = {}) -> str:
    """Write the metrics of a worker; one that has no health yet is starting."""
    return "".join(f"{line}\n" for line in _lines(ready, health, totals, times))


def _lines(ready: bool, health: WorkerHealth | None, totals: Mapping[FigureKey, int], times: Mapping[str, VerbTimes]) -> Iterator[str]:
    yield from _gauge("ready", "Whether this worker starts attempts: 1, or 0.", [({}, ready)])
    if health is None:
        return
    yield from _gauge("running", "Attempts that run here.", [({}, health.running)])
    yield from _gauge("unsettled", "Outcomes in memory that wait to be written.", [({}, health.unsettled)])
    yield from _gauge("proof_of_life_seconds", "Since when the store has not taken its proof of life.", [({}, health.proved_ago)])
    yield from _gauge("blocked_seconds", "For how long its event loop has not answered.", [({}, health.blocked_for)])
    stalled = [({"loop": loop.name}, loop.stalled_for) for loop in health.loops]
    yield from _gauge("loop_stalled_seconds", "For how long a loop has made no progress; 0 if that is not long.", stalled)
    for name, text, figure in _OF_PROCESS:
        yield from _family(name, "counter", text, [("_total", {}, totals.get(FigureKey(figure), 0))])
    attempts: list[Sample] = [
        ("_total", {"handler": key.handler, "outcome": key.part}, count) for key, count in sorted(totals.items()) if key.name == ATTEMPTS
    ]
    yield from _family("attempts", "counter", "Attempts that ended, by handler and outcome.", attempts)
    # also those that never failed: Prometheus does not see a rise from a missing value
    handlers = sorted({key.handler for key in totals if key.name == ATTEMPTS})
    for name, text, figure in _BY_HANDLER:
        counts: list[Sample] = [("_total", {"handler": handler}, totals.get(FigureKey(figure, handler), 0)) for handler in handlers]
        yield from _family(name, "counter", text, counts)
    for name, text, figure in _SPREADS:
        yield from _family(name, "histogram", text, _histograms(totals, figure))
    yield from _family("store_seconds", "histogram", "How long the store took, by verb, since the first scrape.", _took(times))


def _took(times: Mapping[str, VerbTimes]) -> list[Sample]:
    samples: list[Sample] = []
    for verb, each in times.items():
        for upper, upto in zip(BUCKETS, each.buckets, strict=True):
            samples.append(("_bucket", {"verb": verb, "le": str(upper)}, upto))
        samples += [("_bucket", {"verb": verb, "le": "+Inf"}, each.calls), ("_count", {"verb": verb}, each.calls)]
        samples.append(("_sum", {"verb": verb}, each.seconds))
    return samples


def _histograms(totals: Mapping[FigureKey, int], figure: str) -> list[Sample]:
    samples: list[Sample] = []
    for handler, spread in distributions(totals, figure).items():
        for upper, upto in spread.buckets:
            samples.append(("_bucket", {"handler": handler, "le": "+Inf" if upper is None else str(upper)}, upto))
        samples += [("_count", {"handler": handler}, spread.count), ("_sum", {"handler": handler}, spread.sum)]
    return samples


def _gauge(name: str, text: str, values: Sequence[tuple[Labels, float]]) -> Iterator[str]:
    return _family(name, "gauge", text, [("", labels, value) for labels, value in values])


def _family(name: str, kind: str, text: str, samples: Sequence[Sample]) -> Iterator[str]:
    full = f"duetime_worker_{name}"
    named = f"{full}_total" if kind == "counter" else full
    yield f"# HELP {named} {text}"
    yield f"# TYPE {named} {kind}"
    for suffix, labels, value in samples:
        inside = ",".join(f'{label}="{content.translate(_ESCAPED)}"' for label, content in labels.items())
        yield f"{full}{suffix}{{{inside}}} {float(value)!r}" if inside else f"{full}{suffix} {float(value)!r}"
