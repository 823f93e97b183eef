-- Flows, their nodes and members.

-- insert_flow: a new flow
insert into duetime.flow (id, name, state, graph, submitted_at, submitted_by, deadline_at, meta, key, holds_key)
values ($1::uuid, $2::text, 'running', $3::text, $4::bigint, $5::text, $6::bigint, $7::text, $8::text,
    $8::text is not null)
on conflict do nothing returning id::text

-- key_of_flow: the live flow that has this key
select f.id::text from duetime.flow as f where f.name = $1::text and f.key = $2::text and f.holds_key

-- insert_nodes: the nodes of a new flow
insert into duetime.node (flow, number) select $1::uuid, n.number from generate_series(0, $2::integer - 1) as n (number)

-- insert_drafts: tasks of nodes that are to be made
insert into duetime.draft (flow, node, first, tasks)
select w.* from unnest($1::uuid[], $2::integer[], $3::integer[], $4::text[]) as w (flow, node, first, tasks)

-- one_view: all that this transaction reads is of one moment
set transaction isolation level repeatable read read only

-- lock_flows: nobody else changes these flows until this transaction has ended
select f.id from duetime.flow as f where f.id = any ($1::uuid[]) order by f.id for update

-- read_flows: flows by id
select f.id::text, f.name, f.state, f.stopping, f.graph, f.submitted_at, f.submitted_by, f.deadline_at, f.finished_at,
    f.meta, f.key
from duetime.flow as f where f.id = any ($1::uuid[]) order by f.id

-- flow_nodes: what is known of the nodes of flows
select n.flow::text, n.number, n.round, n.opened, n.ended, n.failed, n.error, n.members
from duetime.node as n
where n.flow = any ($1::uuid[])

-- flow_arrivals: what is not counted yet
select a.flow::text, a.seq, a.node, a.round, a.ended, a.failed, pg_snapshot_xmin(pg_current_snapshot())::text
from duetime.arrival as a where a.flow = any ($1::uuid[])

-- single_values: what nodes with one member returned, if somebody reads it
select v.flow::text, v.node, v.data, v.items from duetime.node as n join duetime.value as v
    on v.flow = n.flow and v.node = n.number and v.round = n.round and v.position = 0
where n.flow = any ($1::uuid[])

-- count_arrivals: what is counted in now
delete from duetime.arrival where seq = any ($1::bigint[])

-- write_flows: how flows go on; all that had arrived is counted which transactions before the floor have written
update duetime.flow as f set state = c.state, stopping = c.stopping, more = c.more, finished_at = c.finished_at,
    floor = coalesce($6::text::xid8, f.floor),
    version = f.version + 1, holds_key = f.key is not null and c.finished_at is null and (f.holds_key or not exists (
        select from duetime.flow as o where o.name = f.name and o.key = f.key and o.holds_key))
from unnest($1::uuid[], $2::text[], $3::text[], $4::boolean[], $5::bigint[]) as c (id, state, stopping, more,
    finished_at) where f.id = c.id

-- write_nodes: how nodes go on
update duetime.node as n set opened = c.opened, ended = c.ended, failed = c.failed, error = c.error, members = c.members
from unnest($1::uuid[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::text[], $7::integer[]) as c
    (flow, number, opened, ended, failed, error, members) where n.flow = c.flow and n.number = c.number

-- read_drafts: tasks of nodes that are to be made
select w.flow::text, w.node, w.first, w.tasks from duetime.draft as w
join unnest($1::uuid[], $2::integer[], $3::integer[]) as o (flow, node, first)
    on w.flow = o.flow and w.node = o.node and w.first = o.first

-- insert_members: tasks that belong to nodes
insert into duetime.member (task, flow, node, round, position, keeps)
select m.* from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::integer[], $5::integer[], $6::boolean[]) as m (task,
    flow, node, round, position, keeps)

-- lock_flows_of: nobody else changes the flows of these tasks until this transaction has ended
select f.id from duetime.flow as f
where f.id in (select m.flow from duetime.member as m where m.task = any ($1::uuid[])) order by f.id for update

-- passed_members: which tasks belong to an earlier round of their node
select m.task::text from duetime.member as m join duetime.node as n on n.flow = m.flow and n.number = m.node
where m.task = any ($1::uuid[]) and m.round <> n.round

-- insert_returns: members that live again
insert into duetime.arrival (flow, node, round, ended, failed)
select m.flow, m.node, m.round, -count(*), -count(*) from duetime.member as m where m.task = any ($1::uuid[])
group by m.flow, m.node, m.round

-- ready_flows: flows in which a node may be complete, something has failed, or much is not counted yet. Of given flows
-- only what was written from their floors on is looked at: what was counted before may stand there for as long as
-- somebody holds an old snapshot. The duty looks at all, also of a restored database, where floors mean nothing.
select distinct a.flow::text from (
    select x.flow, x.node, x.round, sum(x.ended) as ended, bool_or(x.failed <> 0) as failed, count(*) as n
    from duetime.arrival as x where $1::uuid[] is null group by x.flow, x.node, x.round
    union all
    select x.flow, x.node, x.round, sum(x.ended), bool_or(x.failed <> 0), count(*)
    from duetime.flow as f cross join lateral (select y.* from duetime.arrival as y where y.flow = f.id
        and y.written_by >= f.floor) as x
    where f.id = any ($1::uuid[]) group by x.flow, x.node, x.round
) as a join duetime.node as k on k.flow = a.flow and k.number = a.node
where a.failed or a.n > $2::integer or k.round <> a.round or k.ended + a.ended >= k.opened limit $3::integer

-- busy_flows: flows of which members are still to be made, and stopped ones of which something may be under way
select f.id::text, f.more, f.stopping is not null and not f.swept from duetime.flow as f
where f.more or (f.stopping is not null and not f.swept) limit $1::integer

-- running_of: those of these flows that run
select f.id::text from duetime.flow as f where f.id = any ($1::uuid[]) and f.state = 'running' order by f.id

-- awaited_flows: the next flows for whose ends tasks wait; such a task has the id of the flow
select s.task::text from duetime.step as s where not s.done and s.signal > $1::text and s.signal < $2::text
order by s.signal limit $3::integer

-- close_awaiting: nobody waits for the ends of these flows any more
delete from duetime.step where not done and signal = any ($1::text[])

-- late_flows: flows past their deadline
select f.id::text from duetime.flow as f where f.deadline_at <= $1::bigint and f.state = 'running'
    and f.stopping is null limit $2::integer

-- stop_flow: let nothing more of a flow start
update duetime.flow set stopping = $2::text, swept = false, version = version + 1 where id = $1::uuid

-- resume_flow: let a flow go on
update duetime.flow set stopping = null, swept = false, more = true, state = 'running', finished_at = null,
    version = version + 1
where id = $1::uuid

-- undo_again: let what undoes a flow go on; the flow stays stopped
update duetime.flow set more = true, state = 'running', finished_at = null,
    version = version + 1
where id = $1::uuid

-- forget_errors: nodes whose members could not be made are tried again
update duetime.node set error = '' where flow = $1::uuid and error <> ''

-- begin_round: nodes begin again
update duetime.node set round = round + 1, opened = 0, ended = 0, failed = 0, error = '', members = null
where flow = $1::uuid and number = any ($2::integer[])

-- swept_flow: all that was under way in a stopped flow was told to end
update duetime.flow set swept = true where id = $1::uuid and stopping is not null

-- members_of: tasks of a node, by position
select m.task::text, m.position from duetime.member as m where m.flow = $1::uuid and m.node = $2::integer
    and m.round = $3::integer and m.position > $4::integer order by m.position limit $5::integer

-- values_of: what members of a node returned
select v.position, v.data, v.items from duetime.value as v where v.flow = $1::uuid and v.node = $2::integer
    and v.round = $3::integer order by v.position

-- next_values: what members of a node returned, from a position on, until that has so many bytes
select n.position, n.data, n.items from (
    select v.position, v.data, v.items, sum(octet_length(v.data)) over (order by v.position
        rows between unbounded preceding and 1 preceding) as before
    from duetime.value as v where v.flow = $1::uuid and v.node = $2::integer and v.round = $3::integer
        and v.position > $4::integer order by v.position limit $5::integer
) as n where coalesce(n.before, 0) < $6::bigint order by n.position

-- save_pieces: keep what attempts of a worker have yielded; whether each is kept (1), nobody reads it (2), or stale (0)
select duetime.save_pieces($1::text, $2::uuid[], $3::integer[], $4::integer[], $5::integer[], $6::text[])

-- pieces_of: what a member has yielded, from an item on
select p.first, p.items, p.data from duetime.piece as p where p.flow = $1::uuid and p.node = $2::integer
    and p.round = $3::integer and p.position = $4::integer and p.first > $5::integer
    and p.first + p.items > $6::integer order by p.first limit $7::integer

-- has_yielded: whether a member has succeeded with what it yielded
select 1 from duetime.value as v where v.flow = $1::uuid and v.node = $2::integer and v.round = $3::integer
    and v.position = $4::integer and v.items is not null

-- round_of: the present round of a node
select n.round from duetime.node as n where n.flow = $1::uuid and n.number = $2::integer

-- flow_of: the flow that a task belongs to
select m.flow::text from duetime.member as m where m.task = $1::uuid

-- flow_ids: flows, the newest first
select f.id::text from duetime.flow as f where ($1::text is null or f.state = $1::text)
    and ($2::text is null or f.name = $2::text) and ($3::uuid is null or f.id < $3::uuid)
order by f.id desc limit $4::integer

-- flow_counts: how many flows there are, by name and state
select f.name, f.state, count(*) from duetime.flow as f group by f.name, f.state order by f.name, f.state

-- one_moment: all that this transaction reads is of one moment, and what others change meanwhile it does not overwrite
set transaction isolation level repeatable read

-- running_flows: the next running flows by id, and which of them the duty looks at
select f.id::text, f.more or (f.stopping is not null and not f.swept) from duetime.flow as f
where f.state = 'running' and ($1::uuid is null or f.id > $1::uuid) order by f.id limit $2::integer

-- ends_of_members: how many members of flows live, and have ended without success
select m.flow::text, m.node, count(t.id), count(*) filter (where exists (
    select from duetime.history as h where h.id = m.task and h.state <> 'succeeded'))
from duetime.node as n join duetime.member as m on m.flow = n.flow and m.node = n.number and m.round = n.round
left join duetime.task as t on t.id = m.task where n.flow = any ($1::uuid[]) group by m.flow, m.node

-- correct_nodes: counts as they must be
update duetime.node as n set ended = c.ended, failed = c.failed
from unnest($1::uuid[], $2::integer[], $3::integer[], $4::integer[]) as c (flow, number, ended, failed)
where n.flow = c.flow and n.number = c.number

-- wake_flows: let the duty look at flows
update duetime.flow set more = true where id = any ($1::uuid[])

-- strays_of_flows: flows that are gone, but of which something is left
select x.flow::text from duetime.node as x where not exists (select from duetime.flow as f where f.id = x.flow)
union select x.flow::text from duetime.draft as x where not exists (select from duetime.flow as f where f.id = x.flow)
union select x.flow::text from duetime.member as x where not exists (select from duetime.flow as f where f.id = x.flow)
union select x.flow::text from duetime.arrival as x where not exists (select from duetime.flow as f where f.id = x.flow)
union select x.flow::text from duetime.value as x where not exists (select from duetime.flow as f where f.id = x.flow)
union select x.flow::text from duetime.piece as x where not exists (select from duetime.flow as f where f.id = x.flow)

-- remove_strays: remove what is left of flows that are gone
with gone as materialized (select unnest($1::uuid[]) as id), nodes as (
    delete from duetime.node as n using gone where n.flow = gone.id
), drafts as (
    delete from duetime.draft as w using gone where w.flow = gone.id
), members as (
    delete from duetime.member as m using gone where m.flow = gone.id
), arrivals as (
    delete from duetime.arrival as a using gone where a.flow = gone.id
), pieces as (
    delete from duetime.piece as p using gone where p.flow = gone.id
)
delete from duetime.value as v using gone where v.flow = gone.id

-- prune_flows: flows that ended long ago, with all that is known of them
with old as materialized (
    select f.id from duetime.flow as f where f.finished_at < $1::bigint order by f.finished_at limit $2::integer
    for update skip locked
), nodes as (
    delete from duetime.node as n using old where n.flow = old.id
), drafts as (
    delete from duetime.draft as w using old where w.flow = old.id
), members as (
    delete from duetime.member as m using old where m.flow = old.id
), arrivals as (
    delete from duetime.arrival as a using old where a.flow = old.id
), pieces as (
    delete from duetime.piece as p using old where p.flow = old.id
), kept as (
    delete from duetime.value as v using old where v.flow = old.id
)
delete from duetime.flow as f using old where f.id = old.id returning f.id
