"""What people write flows with: plans, nodes and conditions, and handlers whose tasks are flows."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    overload,
)

import msgspec

from duetime.app.handlers import AnyHandler, one_of
from duetime.client.flows import Flow, Flows, flow_failed
from duetime.clock import Seconds, to_micros
from duetime.errors import Conflict, Fatal, FlowNotFound, InvalidHandler, InvalidValue
from duetime.ids import new_id
from duetime.model.flow import ENDED, FLOW, NODE, TAKES, Condition, Graph, NodePlan, check_graph, mentioned
from duetime.model.flow_values import ITEM, STREAM, VALUE, VALUES, Value, kind_of, path_of, sources, takes_item
from duetime.model.steps import CALLED_BY
from duetime.model.task import NewTask, check_meta, check_name, delay_micros, due_instant
from duetime.model.trace_context import TRACEPARENT, TRACESTATE
from duetime.store.flows import NewFlow
from duetime.targets.context import Context
from duetime.targets.occurrence import Occurrence
from duetime.targets.payload import encode_yielded
from duetime.targets.signature import default_name, resolve, yields
from duetime.targets.streams import Results, collected

if TYPE_CHECKING:
    pass

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

OnFailure: TypeAlias = Literal["continue", "stop"]
IfExists: TypeAlias = Literal["error", "keep"]

_OF_MEMBERS = frozenset({FLOW, NODE, TAKES, CALLED_BY, TRACEPARENT, TRACESTATE})  # what one task says of itself


class Node(Generic[R]):
    """A node of a plan: one task, or a group of them. As what another one needs it means its success."""

    def __init__(self, plan: Plan, name: str) -> None:
        self._plan = plan
        self.name = name

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    @property
    def succeeded(self) -> Condition:
        return Condition(self.name, "succeeded")

    @property
    def failed(self) -> Condition:
        """It ended without success: failed, cancelled, expired or dropped; of a group more than are tolerated."""
        return Condition(self.name, "failed")

    @property
    def ended(self) -> Condition:
        """It ended in any way, or was skipped."""
        return Condition(self.name, "ended")

    @property
    def not_failed(self) -> Condition:
        """It succeeded or was skipped."""
        return Condition(self.name, "not_failed")

    @property
    def value(self) -> R:
        """What it returns, as an argument of another task, which then waits for its success. Items and attributes are parts of it."""
        if self._plan.is_group(self.name):
            raise InvalidValue(f"node {self.name!r} is a group; take all results: .values")
        return cast(R, Value(VALUE, (self.name,)))

    @property
    def stream(self: Node[list[T]]) -> Results[T]:
        """The items of the list that it returns or yields, for a parameter of type `Results[…]`, which reads them in pages."""
        return cast(Results[T], Value(STREAM, (self.name,)))

    def returned(self, value: R) -> Condition:
        """It succeeded with this result, compared as JSON."""
        return Condition(self.name, "returned", msgspec.to_builtins(value))


class Group(Node[R]):
    """A node of many tasks."""

    @property
    def values(self) -> list[R]:
        """What its tasks return, in their order and without those that failed, as an argument of another task, which waits for it."""
        return cast(list[R], Value(VALUES, (self.name,)))

    @property
    def stream(self) -> Results[R]:  # type: ignore[override]
        """The same for a parameter of type `Results[…]`, which reads them in pages: for more than an argument can hold."""
        return cast(Results[R], Value(STREAM, (self.name,)))


Needed: TypeAlias = Node[Any] | Condition


def any_of(*needs: Needed) -> Condition:
    """Need one of several: `needs=[any_of(a.failed, b.failed)]`."""
    return at_least(1, *needs)


def at_least(least: int, *needs: Needed) -> Condition:
    """Need so many of several: `needs=[at_least(2, a, b, c)]`."""
    if not needs or not 1 <= least <= len(needs):
        raise InvalidValue(f"at_least takes how many of the conditions behind it must hold: 1 to {len(needs)}, got {least}")
    return Condition(least=least, of=tuple(_condition(each, "at_least") for each in needs))


class Plan:
    """A flow in the making. A flow's function gets one and adds nodes to it; nothing is stored before it returns.

    `occurrence` is the planned instant of the schedule that submitted the flow, with its `interval`; None if none did. `meta` is what all
    its tasks will have.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.occurrence: Occurrence | None = None
        self.meta: Mapping[str, str] = {}
        self._nodes: dict[str, NodePlan] = {}
        self._tasks: dict[str, list[NewTask[Any]]] = {}
        self._result: str | None = None

    def add(
        self,
        task: NewTask[R],
        *,
        needs: Sequence[Needed] = (),
        name: str | None = None,
        undo: NewTask[Any] | Callable[[R], NewTask[Any]] | None = None,
    ) -> Node[R]:
        """Add a task, as `handler.new(…)` makes it. It starts when all that it `needs` has happened, its delay counts from then.

        A node without a `name` is called like its handler, the second one `name-2`. `undo` is a task that takes back what this one did,
        or a function that makes it of what this one returned: `undo=lambda charge: refund.new(charge=charge)`. It runs if this one
        succeeded and the flow fails or is cancelled, after the undoing of all that followed.
        """
        node = self._add([task], needs, name, group=False, tolerate=0)
        if undo is not None:
            self._undo(node, undo)
        return node

    def _undo(self, node: Node[R], undo: NewTask[Any] | Callable[[R], NewTask[Any]]) -> None:
        task = undo if isinstance(undo, NewTask) else undo(node.value)
        _check_member(task, mapped=False)
        name = f"undo-{node.name}"
        if name in self._nodes:
            raise InvalidValue(f"two nodes are named {name!r}, which is what the undoing of {node.name!r} is called")
        read = taken_from([task])
        for source in read:
            if source not in self._nodes:
                raise InvalidValue(f"node {name!r} takes a value of {source!r}, which is no node of this plan")
            self._keep(source)
        self._nodes[name] = NodePlan(name=name, handler=task.handler, reads=bool(read), undoes=node.name)
        self._tasks[name] = [task]

    def group(self, tasks: Iterable[NewTask[R]], *, needs: Sequence[Needed] = (), name: str | None = None, tolerate: float = 0) -> Group[R]:
        """Add many tasks as one node, which ends when all of them have. `tolerate`: how many may fail, or a share below 1."""
        return Group(self, self._add(list(tasks), needs, name, group=True, tolerate=tolerate).name)

    def map(
        self,
        items: Iterable[T],
        make: Callable[[T], NewTask[R]],
        *,
        needs: Sequence[Needed] = (),
        name: str | None = None,
        tolerate: float = 0,
    ) -> Group[R]:
        """Add a task for each item of a list that another node returns: `plan.map(paths.value, lambda path: resize.new(path=path))`.

        The list is known when that node has succeeded; then `make`, which has been called once with a placeholder, says what each task
        takes of its item. At most 1,000,000 items; with an empty list the node has succeeded at once.
        """
        if not isinstance(items, Value) or kind_of(items) != VALUE:
            raise InvalidValue(f"plan.map takes what another node returns: paths.value, or a part of it; got {type(items).__name__}")
        task = make(cast(T, Value(ITEM, ())))
        return Group(self, self._add([task], needs, name, group=True, tolerate=tolerate, each=path_of(items)).name)

    def is_group(self, name: str) -> bool:
        return self._nodes[name].group

    def _add(
        self,
        tasks: list[NewTask[R]],
        needs: Sequence[Needed],
        name: str | None,
        *,
        group: bool,
        tolerate: float,
        each: tuple[str | int, ...] = (),
    ) -> Node[R]:
        for task in tasks:
            _check_member(task, mapped=bool(each))
        handlers = list(dict.fromkeys(task.handler for task in tasks))
        chosen = self._free(handlers[0] if handlers else "group") if name is None else check_name(name, "the name of a node")
        if chosen in self._nodes:
            raise InvalidValue(f"two nodes are named {chosen!r}; give one of them another name")
        if isinstance(needs, Node | Condition):
            raise InvalidValue("needs is a list of nodes: needs=[node], or needs=[node.failed]")
        read = list(dict.fromkeys([*map(str, each[:1]), *taken_from(tasks)]))
        conditions = tuple(_condition(need, f"needs of node {chosen!r}") for need in needs)
        waits = {single.node for single in mentioned(conditions)}
        conditions += tuple(Condition(source) for source in read if source not in waits)
        for single in mentioned(conditions):
            if single.node not in self._nodes:
                raise InvalidValue(f"node {chosen!r} needs {single.node!r}, which is no node of this plan")
            if single.on == "returned" or single.node in read:
                self._keep(single.node)
        self._nodes[chosen] = NodePlan(
            name=chosen,
            handler=", ".join(handlers),
            needs=conditions,
            members=0 if each else len(tasks),
            group=group,
            tolerate=tolerate,
            reads=bool(read),
            each=each,
        )
        self._tasks[chosen] = list(tasks)
        return Node(self, chosen)

    def result(self, node: Node[Any]) -> None:
        """Let what a node returns be the result of the flow. A flow's function does this by returning the node."""
        if not isinstance(node, Node) or self._nodes.get(node.name) is None:
            raise InvalidValue(f"the result of a flow is that of one of its nodes, got {node!r}; return what plan.add(…) returned")
        if self._nodes[node.name].group:
            raise InvalidValue(f"node {node.name!r} is a group, which returns no single value; let a task that needs it make the result")
        self._keep(node.name)
        self._result = node.name

    def new_flow(
        self,
        *,
        id: str | None = None,
        on_failure: OnFailure = "continue",
        deadline: Seconds | None = None,
        meta: Mapping[str, str] | None = None,
        key: str | None = None,
        if_exists: IfExists = "error",
    ) -> NewFlow:
        """Return the flow, checked, to be stored."""
        graph = check_graph(
            Graph(nodes=tuple(self._nodes.values()), result=self._result, on_failure=one_of("on_failure", on_failure, ("continue", "stop")))  # type: ignore[arg-type]
        )
        return NewFlow(
            id=new_id() if id is None else id,
            name=check_name(self.name, "the name of a flow"),
            graph=graph,
            tasks=[self._tasks[plan.name] for plan in graph.nodes],
            deadline_in=None if deadline is None else to_micros(deadline, "deadline"),
            meta=None if meta is None else check_meta(meta),
            key=None if key is None else check_name(key, "key"),
            if_exists=if_exists,
        )

    def mermaid(self) -> str:
        """Return the graph as a Mermaid diagram."""
        numbers = {name: f"n{number}" for number, name in enumerate(self._nodes)}
        lines = ["flowchart LR"]
        for name, plan in self._nodes.items():
            many = " × …" if plan.each else f" × {plan.members:,}" if plan.group else ""
            label = name.replace('"', "#quot;") + many
            lines.append(f'    {numbers[name]}["{label}"]')
            lines += [f"    {numbers[each.node]} -->|{each.on.replace('_', ' ')}| {numbers[name]}" for each in mentioned(plan.needs)]
            lines += [f"    {numbers[plan.undoes]} -.->|undone by| {numbers[name]}"] if plan.undoes else []
        return "\n".join(lines) + "\n"

    def postpone(self, *, delay: int = 0, due_at: int | None = None) -> None:
        """Let what waits for nothing start later; a task with a time of its own keeps it."""
        for name, plan in self._nodes.items():
            if not plan.needs and not plan.undoes:
                self._tasks[name] = [
                    task if task.delay or task.due_at is not None else msgspec.structs.replace(task, delay=delay, due_at=due_at)
                    for task in self._tasks[name]
                ]

    def _keep(self, name: str) -> None:
        self._nodes[name] = msgspec.structs.replace(self._nodes[name], keeps=True)

    def _free(self, name: str) -> str:
        number = 2
        chosen = name
        while chosen in self._nodes:
            chosen, number = f"{name}-{number}", number + 1
        return chosen


def taken_from(tasks: Iterable[NewTask[Any]]) -> list[str]:
    """Return the nodes that tasks take values from, each once."""
    return list(dict.fromkeys(name for task in tasks for name in sources(task.payload)))


def _condition(need: object, where: str) -> Condition:
    if isinstance(need, Condition):
        return need
    if isinstance(need, Node):
        return need.succeeded
    raise InvalidValue(f"{where}: a node or a condition such as node.failed was expected, got {type(need).__name__}")


def _check_member(task: object, *, mapped: bool) -> None:
    if not isinstance(task, NewTask):
        raise InvalidValue(f"a node is made of new tasks, as handler.new(…) makes them; got {type(task).__name__}")
    if task.key is not None:
        raise InvalidValue(f"a task of {task.handler} in a flow has no key: it is made when its node is free, and is the flow's alone")
    if not mapped and takes_item(task.payload):
        raise InvalidValue(f"a task of {task.handler} takes the item of a map, but is in none; make it in the function of plan.map")
    if task.edges:
        raise InvalidValue(f"a task of {task.handler} in a flow needs nodes, not tasks; give needs= to plan.add")


class FlowHome(Protocol):
    """What a flow is submitted through: the App or the group that declared it."""

    user: str

    def submit_flow(self, flow: NewFlow, /, *, connection: object | None = None) -> Coroutine[Any, Any, Flow[Any]]: ...

    def flow_door(self, name: str) -> Flows: ...


class FlowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one flow differs from others of its handler."""

    on_failure: OnFailure = "continue"
    deadline: Seconds | None = None
    meta: Mapping[str, str] | None = None
    connection: object | None = None
    key: str | None = None
    if_exists: IfExists = "error"


class FlowHandler(Generic[P, R]):
    """A declared flow: submit it whole with `.now(…)`, or by its name as a task that a worker turns into the flow."""

    def __init__(self, name: str, build: Callable[Concatenate[Plan, P], Node[R] | None], home: FlowHome, options: FlowOptions) -> None:
        self.name = name
        self._build = build
        self._home = home
        self._options = options
        self.task: AnyHandler | None = None  # of the same name, which builds the flow in a worker

    def __repr__(self) -> str:
        return f"<flow {self.name}>"

    def plan(self, /, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """Return the plan of these arguments; nothing is stored."""
        if self.task is not None:
            self.task.new(*args, **kwargs)  # checks the arguments as those of a task are
        plan = Plan(self.name)
        plan.meta = self.meta_with({})
        result = self._build(plan, *args, **kwargs)
        if inspect.isawaitable(result):
            raise InvalidHandler(f"{self.name}: the function of a flow must be a plain `def`: it only says what shall be done")
        if result is not None:
            plan.result(result)
        return plan

    def now(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Flow[R]]:
        """Submit the flow; what waits for nothing is due at once."""
        return self._submit(self.plan(*args, **kwargs))

    def after(self, delay: Seconds, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Flow[R]]:
        """Submit the flow; what waits for nothing is due `delay` after it is stored."""
        plan = self.plan(*args, **kwargs)
        plan.postpone(delay=delay_micros(delay))
        return self._submit(plan)

    def at(self, when: datetime, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Flow[R]]:
        """Submit the flow; what waits for nothing is due at an instant."""
        plan = self.plan(*args, **kwargs)
        plan.postpone(due_at=due_instant(when))
        return self._submit(plan)

    def new(self, /, *args: P.args, **kwargs: P.kwargs) -> NewTask[R]:
        """Return a task that becomes this flow and ends with it: a node of another flow (`plan.add`), or a child (`ctx.call`).

        Its result is the flow's. It takes no slot while it waits.
        """
        if self.task is None:
            raise InvalidHandler(f"{self.name} is no declared flow")
        if self._options.key is not None or self._options.connection is not None:
            raise InvalidValue(f"{self.name}: a flow inside of another one has no key and no connection of its own")
        task = self.task.options(meta=self._options.meta) if self._options.meta else self.task
        made: NewTask[R] = task.new(*args, **kwargs)
        return made

    def options(
        self,
        *,
        on_failure: OnFailure | None = None,
        deadline: Seconds | None = None,
        meta: Mapping[str, str] | None = None,
        connection: object | None = None,
        key: str | None = None,
        if_exists: IfExists | None = None,
    ) -> Self:
        """Return the same flow with other options; those that are left out stay as they are. `meta` is that of all its tasks.

        At most one live flow of a name has a `key`. A second one is refused with DuplicateKey; with `if_exists="keep"` the live one is
        returned instead.
        """
        if str(if_exists) == "replace":
            raise InvalidValue('a flow is not replaced: cancel the live one and submit again, or take if_exists="keep"')
        if if_exists is not None:
            one_of("if_exists", if_exists, get_args(IfExists))
        changes = {
            "on_failure": on_failure,
            "deadline": deadline,
            "meta": meta,
            "connection": connection,
            "key": key,
            "if_exists": if_exists,
        }
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._options = msgspec.structs.replace(self._options, **{name: value for name, value in changes.items() if value is not None})
        return other

    def meta_with(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return what all tasks of a flow have in their meta, given that of the task that becomes the flow."""
        own = {name: value for name, value in given.items() if not name.startswith("duetime.") and name not in _OF_MEMBERS}
        return {**own, **(self._options.meta or {})}

    def new_flow(self, plan: Plan, id: str | None = None) -> NewFlow:
        options = self._options
        return plan.new_flow(
            id=id,
            on_failure=options.on_failure,
            deadline=options.deadline,
            meta=plan.meta or None,
            key=options.key,
            if_exists=options.if_exists,
        )

    def _submit(self, plan: Plan) -> Coroutine[Any, Any, Flow[R]]:
        return self._home.submit_flow(self.new_flow(plan), connection=self._options.connection)


def starter(handler: FlowHandler[..., Any], build: Callable[..., Any], home: FlowHome) -> Callable[..., Any]:
    """Return the function of the task of a flow's name: it builds the flow in a worker and stores it under the task's own id."""
    parameters = list(inspect.signature(build).parameters.values())
    if not parameters or not _is_plan(build, parameters[0]):
        raise InvalidHandler(f"{handler.name}: the first parameter of a flow is its plan: def {handler.name}(plan: Plan, …) -> Node[…]")
    if inspect.iscoroutinefunction(build) or yields(build):
        raise InvalidHandler(f"{handler.name}: the function of a flow must be a plain `def`: it only says what shall be done")

    async def start(ctx: Context, /, *args: Any, **kwargs: Any) -> Any:
        async def submit(*, awaited: bool) -> Flow[Any]:
            plan = Plan(handler.name)
            plan.occurrence = ctx.occurrence
            plan.meta = handler.meta_with(ctx.task.meta)
            result = build(plan, *args, **kwargs)
            if result is not None:
                plan.result(result)
            # under the task's id: an attempt that is repeated stores it once
            flow = handler.new_flow(plan, id=ctx.task.id)
            return await home.submit_flow(msgspec.structs.replace(flow, graph=msgspec.structs.replace(flow.graph, awaited=awaited)))

        if FLOW in ctx.task.meta or CALLED_BY in ctx.task.meta:
            return await sub_flow(ctx, home.flow_door(handler.name), submit)
        return {"flow": (await submit(awaited=False)).id}

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)
    start.__signature__ = inspect.Signature([context, *parameters[1:]], return_annotation=Any)  # type: ignore[attr-defined]
    start.__wrapped__ = build  # type: ignore[attr-defined]  # where annotations are resolved
    for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(start, attribute, getattr(build, attribute, None))
    return start


class FlowStarter(Protocol):
    """What stores the flow of a task."""

    def __call__(self, *, awaited: bool) -> Awaitable[Flow[Any]]: ...


async def sub_flow(ctx: Context, flows: Flows, submit: FlowStarter) -> Any:
    """Store the flow of a task that others wait for, wait for its end without a slot, and return its result.

    The task fails if the flow does not succeed. If it is retried then, so is the flow.
    """

    async def look(number: int) -> Flow[Any] | None:
        try:
            found = await flows.get(ctx.task.id)
        except FlowNotFound:
            found = await submit(awaited=True)
        if not found.final:
            return None
        if found.state == "succeeded" or await ctx.steps.first(f"end-{number}"):
            return found
        try:
            await flows.retry(found)
        except Conflict:
            return found
        return None

    ended = await ctx.steps.until(f"{ENDED}{ctx.task.id}", look)
    if ended.state != "succeeded":
        raise Fatal(str(flow_failed(ended)))
    if ended.result_items is not None and ended.result_of is not None:  # it was yielded, so this task yields it, too
        return await collected(ctx, encode_yielded, partial(flows.results, ended, ended.result_of))
    return ended.result


def _is_plan(build: Callable[..., Any], first: inspect.Parameter) -> bool:
    annotation = first.annotation
    if isinstance(annotation, str):
        try:
            annotation = resolve(build, annotation)
        except Exception:  # only the type checker knows the name
            return str(annotation).rpartition(".")[2] == "Plan"
    return annotation is Plan


class FlowDecorator(Protocol):
    """The result of `app.flow(…)` with options."""

    @overload
    def __call__(self, function: Callable[Concatenate[Plan, P], Node[R]], /) -> FlowHandler[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Plan, P], None], /) -> FlowHandler[P, None]: ...


class DeclaresFlows:
    """Declares flows by name, and submits those without a name."""

    user: str
    _prefix: str

    def submit_flow(self, flow: NewFlow, /, *, connection: object | None = None) -> Coroutine[Any, Any, Flow[Any]]:
        raise NotImplementedError

    def flow_door(self, name: str) -> Flows:
        """Return the flows of the App that a flow of this name belongs to."""
        raise NotImplementedError

    @overload
    def flow(self, function: Callable[Concatenate[Plan, P], Node[R]], /) -> FlowHandler[P, R]: ...
    @overload
    def flow(self, function: Callable[Concatenate[Plan, P], None], /) -> FlowHandler[P, None]: ...
    @overload
    def flow(self, *, name: str | None = None, on_failure: OnFailure = "continue", deadline: Seconds | None = None) -> FlowDecorator: ...
    def flow(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        on_failure: OnFailure = "continue",
        deadline: Seconds | None = None,
    ) -> Any:
        """Declare a flow: a function that gets a plan, adds nodes to it, and returns the node whose result is the flow's.

        With `on_failure="stop"` the first failure ends what else waits and runs, except what waits for failures; by default other branches
        go on. A flow that has not ended by its `deadline`, counted from its submission, is stopped and fails. The name is also that of a
        handler, whose tasks become the flow in a worker: so it can be submitted over HTTP, from the command line and by a schedule.
        """
        options = FlowOptions(on_failure=one_of("on_failure", on_failure, ("continue", "stop")), deadline=deadline)  # type: ignore[arg-type]
        if deadline is not None and to_micros(deadline, "deadline") <= 0:
            raise InvalidValue(f"deadline must be positive, got {deadline}")

        def declare(function: Callable[..., Any]) -> FlowHandler[..., Any]:
            short = name if name is not None else default_name(function)
            handler: FlowHandler[..., Any] = FlowHandler(self._prefix + short, function, self, options)
            task: Any = self.task  # type: ignore[attr-defined]
            handler.task = task(name=short)(starter(handler, function, self))
            return handler

        return declare if function is None else declare(function)

    def chain(self, *tasks: NewTask[Any], name: str = "chain", connection: object | None = None) -> Coroutine[Any, Any, Flow[Any]]:
        """Submit tasks that run one after the other, each when the one before it has succeeded. The last one's result is the flow's."""
        plan = Plan(name)
        last: Node[Any] | None = None
        for task in tasks:
            last = plan.add(task, needs=[] if last is None else [last])
        if last is None:
            raise InvalidValue("a chain needs at least one task: app.chain(fetch.new(id=7), store.new(id=7))")
        plan.result(last)
        return self.submit_flow(plan.new_flow(), connection=connection)

    def group(
        self,
        tasks: Iterable[NewTask[Any]],
        /,
        *,
        name: str = "group",
        succeeded: NewTask[Any] | None = None,
        failed: NewTask[Any] | None = None,
        ended: NewTask[Any] | None = None,
        tolerate: float = 0,
        connection: object | None = None,
    ) -> Coroutine[Any, Any, Flow[Any]]:
        """Submit many tasks as one flow, and tasks that follow when all have ended: with success, otherwise, or in any way.

        `tolerate` is how many may fail, or a share below 1. The result is that of the task in `succeeded`.
        """
        plan = Plan(name)
        members = plan.group(tasks, name="tasks", tolerate=tolerate)
        if succeeded is not None:
            plan.result(plan.add(succeeded, name="succeeded", needs=[members]))
        if failed is not None:
            plan.add(failed, name="failed", needs=[members.failed])
        if ended is not None:
            plan.add(ended, name="ended", needs=[members.ended])
        return self.submit_flow(plan.new_flow(), connection=connection)
