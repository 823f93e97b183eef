"""The shipper: brings what attempts print and log from the worker's folder into the store.

The journal and the files are the truth until the store has everything: a worker that is killed, a store that is away and a lost answer
only delay it. Nothing happens per attempt: once a second, and soon after an attempt with output has ended, the folder is looked at, and
what is new in it is written in one go. So attempts without output cost nothing here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from duetime.clock import monotonic
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.runtime.service import Alarms, Service
from duetime.store import Store
from duetime.store.output import OutputChunk
from duetime.targets.output.files import OutputFiles
from duetime.targets.output.journal import Journal, Name
from duetime.targets.output.spool import Spool, SpoolFile, abandoned, pieces, read_from, spool_root, text_of, whole_characters
from duetime.worker.backlog import Backlog, JournalParcel

logger = logging.getLogger("duetime.output")

LOOK_EVERY = 1.0
NOT_SOONER = 0.05  # seconds between two looks, so that attempts that end together share one
LOOK_FOR_THE_DEAD = 30.0
PARCELS = 500  # attempts of one write
LAST_WRITES = 5.0  # seconds for what is left when the worker stops


def begin_shipping(
    store: Store, alarms: Alarms, setting: str | None, cap: int, *, running: Callable[[], Mapping[str, int]]
) -> Sequence[Shipper]:
    """Make a folder for the output of a worker, and its shipper; nothing if output is off or no folder can be made."""
    root = spool_root(setting, store.output_folder, store.url)
    if root is None:
        return ()
    try:
        spool = Spool.begin(root)
    except OSError as error:
        logger.warning(
            "the output of attempts is not kept: no folder can be made in %s: %s; set DUETIME_OUTPUT to another one", root, error
        )
        return ()
    return (Shipper(store, alarms, spool, root, running, cap),)


class Parcel(msgspec.Struct):
    """What is new in one file. `final`: with this the output of the attempt is complete."""

    file: SpoolFile
    chunks: list[OutputChunk]
    final: bool

    @property
    def name(self) -> Name:
        return self.file.task, self.file.attempt


class Shipper(Service):
    """Ships one worker's output, and that of dead workers of the same machine. `running` gives the attempts that have not ended."""

    name = "shipper"

    def __init__(self, store: Store, alarms: Alarms, spool: Spool, root: Path, running: Callable[[], Mapping[str, int]], cap: int) -> None:
        super().__init__(alarms)
        self._store = store
        self._own = spool
        self.files = OutputFiles(spool.folder, cap, self.wake, journal=Journal(spool.folder))
        self._backlog = Backlog(spool.folder, self.files)
        self._backlogs: dict[Path, Backlog] = {}  # of the dead
        self._root = root
        self._running = running
        self._adopted: list[Spool] = []
        self._shipped: dict[Name, int] = {}
        self._refused: set[Name] = set()  # what the store cannot keep: it stays for another worker to try
        self._closed: set[Name] = set()  # what it wants no more of: the files go when their attempts are over
        self._look_for_dead_at = 0.0
        self._more = False  # whether there was more than fits into one write

    async def run_once(self) -> float | None:
        await self.ship()
        while self._more and not self._stopping:  # `finish` ships the rest, within its bound
            self.progressed()
            await self.ship()
        await asyncio.sleep(NOT_SOONER)  # also after a look that found nothing: the end of every attempt in a sub-process may ask for one
        return LOOK_EVERY

    async def ship(self) -> int:
        """Ship what is new, up to a bound; return of how many attempts."""
        await asyncio.to_thread(self._adopt)
        own, left = await asyncio.to_thread(self._files)
        # read after the files were listed: an attempt that has a file and is not among these has ended, and writes no more
        running = self._running()
        self._backlog.look(running)
        for backlog in self._backlogs.values():
            backlog.look({})
        parcels = await asyncio.to_thread(self._pack, own, left, running)
        for start in range(0, len(parcels), PARCELS):
            await self._ship(parcels[start : start + PARCELS])
        await asyncio.to_thread(self._retire)
        return len(parcels)

    def _retire(self) -> None:
        for backlog in (self._backlog, *self._backlogs.values()):
            backlog.retire()

    async def finish(self) -> None:
        """Ship what is left when the worker has stopped; what cannot be shipped now is found by the next worker."""
        try:
            async with asyncio.timeout(LAST_WRITES):
                while await self.ship() or self._more:
                    pass
        except Exception as error:  # whatever it is, the worker must go on stopping
            expected = isinstance(error, StoreUnavailable | OSError)  # also TimeoutError
            logger.warning(
                "output is left in %s for the next worker on this machine: %s",
                self._own.folder,
                str(error) or ("the time is over" if expected else type(error).__name__),
                exc_info=None if expected else error,
            )
        finally:
            self.leave()

    def leave(self) -> None:
        """Release the folders."""
        if self.files.journal is not None:
            self.files.journal.close()
        for spool in (self._own, *self._adopted):
            spool.leave()

    @property
    def descriptor(self) -> int:
        """What children must hold: as long as one lives, nobody else touches the files."""
        return self._own.descriptor

    # ---- packing, in a thread ----

    def _adopt(self) -> None:
        now = monotonic()
        if now >= self._look_for_dead_at:
            self._look_for_dead_at = now + LOOK_FOR_THE_DEAD
            found = list(abandoned(self._root, self._own))
            self._adopted += found
            self._backlogs |= {spool.folder: Backlog(spool.folder) for spool in found}

    def _files(self) -> tuple[list[SpoolFile], list[SpoolFile]]:
        left: list[SpoolFile] = []
        for spool in list(self._adopted):
            files = spool.files()
            left += files
            if self._backlogs[spool.folder].empty and not [file for file in files if (file.task, file.attempt) not in self._refused]:
                self._adopted.remove(spool)
                del self._backlogs[spool.folder]
                spool.leave()
        return self._own.files(), left

    def _pack(self, own: Sequence[SpoolFile], left: Sequence[SpoolFile], running: Mapping[str, int]) -> list[Parcel | JournalParcel]:
        space, self._more = self._store.traits.output_batch, False
        written: list[JournalParcel] = []
        for backlog in (self._backlog, *self._backlogs.values()):
            packed, space = backlog.pack(space)
            written += packed
            self._more = self._more or backlog.behind
        return [*written, *self._pack_files(own, left, running, space)]

    def _pack_files(self, own: Sequence[SpoolFile], left: Sequence[SpoolFile], running: Mapping[str, int], space: int) -> list[Parcel]:
        parcels: list[Parcel] = []
        attempts = (*((file, running.get(file.task) != file.attempt) for file in own), *((file, True) for file in left))
        for file, over in attempts:
            name = file.task, file.attempt
            if name in self._closed and over:
                file.path.unlink(missing_ok=True)
                self._closed.discard(name)
                continue
            if name in self._refused or name in self._closed:
                continue
            if space <= 0 or len(parcels) == PARCELS:
                self._more = True
                break
            with contextlib.suppress(FileNotFoundError):  # somebody tidied up
                parcel = self._parcel(file, space, over=over)
                space -= sum(len(chunk.text) for chunk in parcel.chunks)
                if parcel.chunks:
                    parcels.append(parcel)
        return parcels

    def _parcel(self, file: SpoolFile, space: int, *, over: bool) -> Parcel:
        start = self._shipped.get((file.task, file.attempt), 0)
        data, all_read = read_from(file.path, start, space)
        self._more = self._more or not all_read
        final = over and all_read
        if not final:
            data = data[: whole_characters(data)]
        chunks = []
        for piece in pieces(data):
            chunks.append(OutputChunk(file.task, file.attempt, start, text_of(piece)))
            start += len(piece)
        if final:  # in a chunk of its own: it is accepted even if the text came before, in a write whose answer was lost
            chunks.append(OutputChunk(file.task, file.attempt, start, "", last=True))
        return Parcel(file, chunks, final)

    # ---- shipping ----

    async def _ship(self, parcels: Sequence[Parcel | JournalParcel]) -> None:
        try:
            answers = await self._store.keep_output([chunk for parcel in parcels for chunk in parcel.chunks])
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(parcels) > 1:  # one that cannot be stored must not hold up the others
                for parcel in parcels:
                    await self._ship([parcel])
                return
            [parcel] = parcels
            task, attempt = parcel.name
            path = parcel.refuse() if isinstance(parcel, JournalParcel) else parcel.file.path
            self._refused.add(parcel.name)
            self._shipped.pop(parcel.name, None)
            logger.warning(
                "output of attempt %d of task %s stays in %s: %s",
                attempt,
                task,
                path,
                str(error) or type(error).__name__,
                exc_info=None if isinstance(error, InvalidValue) else error,
            )
            return
        index, needless = 0, []
        for parcel in parcels:
            stored = answers[index]
            index += len(parcel.chunks)
            if isinstance(parcel, JournalParcel):
                parcel.note(stored)
            elif self._note(parcel, stored):
                needless.append(parcel.file.path)
        if needless:
            await asyncio.to_thread(_remove, needless)

    def _note(self, parcel: Parcel, stored: int | None) -> bool:
        """Go on from where the store is. Return whether the file is no longer needed: the store has everything, or refuses more."""
        complete = stored == parcel.chunks[-1].end
        # nothing was taken although it fits: the output was marked as complete before
        closed = stored == parcel.chunks[0].start and not complete
        if stored is not None and not closed and not (parcel.final and complete):
            self._shipped[parcel.name] = stored
            return False
        self._shipped.pop(parcel.name, None)
        if not parcel.final:
            self._closed.add(parcel.name)
        return parcel.final


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
