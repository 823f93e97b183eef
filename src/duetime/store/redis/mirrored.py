"""What control has and claims or renewals must know: it is copied to the server before a change of it is acknowledged."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.model.disabling import Observed
from duetime.model.gate import Gate
from duetime.model.operation import OperationState, Verb, acted
from duetime.model.targets import NewTarget, StoredTarget
from duetime.store.operations import Acted
from duetime.store.redis.changing import Changing
from duetime.store.redis.database import refused
from duetime.store.rows.operations import edits_of
from duetime.store.values import CancelVerdict, ChangeVerdict, Declaration, HintKind


class Mirrored(Changing):
    """Declarations, gates, targets, and operations, which act on tasks here and are counted in control."""

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        if fair := [each.name for each in declarations if each.fair]:
            raise refused(f"fair shares of collections (fair=True of {fair[0]})")
        await self._control.declare(declarations)
        if declarations:
            await self._mirror_gates()

    async def put_gate(self, gate: Gate) -> int:
        version = await self._control.put_gate(gate)
        await self._mirror_gates()
        self._hint(HintKind.GATES)
        return version

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        version = await self._control.remove_gate(handler, collection)
        await self._mirror_gates()
        self._hint(HintKind.GATES)
        self._hint(HintKind.DUE)
        return version

    async def observe(self, worker: str, observed: Sequence[Observed]) -> bool:
        changed = await self._control.observe(worker, observed)
        if changed:
            await self._mirror_gates()
            self._hint(HintKind.GATES)
            self._hint(HintKind.DUE)
        return changed

    async def put_target(self, target: NewTarget, declaration: Declaration, seen: int | None = None) -> StoredTarget | None:
        stored = await self._control.put_target(target, declaration, seen)
        await self._mirror_targets()
        await self._mirror_gates()  # the declaration may have given the handler other names
        self._hint(HintKind.TARGETS)
        return stored

    async def remove_target(self, name: str, seen: int | None = None) -> bool | None:
        removed = await self._control.remove_target(name, seen)
        await self._mirror_targets()
        self._hint(HintKind.TARGETS)
        return removed

    async def shadow_targets(self, names: Sequence[str]) -> list[str]:
        shadowed = await self._control.shadow_targets(names)
        if shadowed:
            await self._mirror_targets()
            self._hint(HintKind.TARGETS)
        return shadowed

    async def act(self, operation: str) -> Acted | None:
        found = await self._control.operation(operation)
        if found is None or found.state is not OperationState.RUNNING or not found.batch:
            return None if found is None else Acted(found, {})
        verdicts: list[CancelVerdict] | list[ChangeVerdict]
        match found.spec.verb:
            case Verb.CANCEL:
                verdicts = await self.cancel(found.batch)
            case Verb.RETRY:
                verdicts = await self.retry(found.batch)
            case Verb.EDIT:
                verdicts = await self.edit(edits_of(found))
        answers = {task: verdict.value for task, verdict in zip(found.batch, verdicts, strict=True)}
        done = acted(found, answers)
        if not await self._control.save_operation(done):  # another process was faster, and has counted them
            return await self.act(operation)
        return Acted(done, answers)
