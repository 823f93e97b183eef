-- Flows, their nodes and members.

-- insert_flow: a new flow
insert into duetime.flow (id, name, state, graph, submitted_at, submitted_by, deadline_at, meta)
values ($1::uuid, $2::text, 'running', $3::text, $4::bigint, $5::text, $6::bigint, $7::text)
on conflict do nothing returning id::text

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
    f.meta
from duetime.flow as f where f.id = any ($1::uuid[]) order by f.id

-- flow_nodes: what is known of the nodes of flows
select n.flow::text, n.number, n.round, n.opened, n.ended, n.failed, n.error from duetime.node as n
where n.flow = any ($1::uuid[])

-- flow_arrivals: what is not counted yet
select a.flow::text, a.seq, a.node, a.round, a.ended, a.failed from duetime.arrival as a where a.flow = any ($1::uuid[])

-- single_values: what nodes with one member returned, if somebody reads it
select v.flow::text, v.node, v.data from duetime.value as v where v.flow = any ($1::uuid[]) and v.position = 0

-- count_arrivals: what is counted in now
delete from duetime.arrival where seq = any ($1::bigint[])

-- write_flows: how flows go on
update duetime.flow as f set state = c.state, stopping = c.stopping, more = c.more, finished_at = c.finished_at,
    version = f.version + 1
from unnest($1::uuid[], $2::text[], $3::text[], $4::boolean[], $5::bigint[]) as c (id, state, stopping, more,
    finished_at) where f.id = c.id

-- write_nodes: how nodes go on
update duetime.node as n set opened = c.opened, ended = c.ended, failed = c.failed, error = c.error
from unnest($1::uuid[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::text[]) as c (flow, number,
    opened, ended, failed, error) where n.flow = c.flow and n.number = c.number

-- read_drafts: tasks of nodes that are to be made
select w.flow::text, w.node, w.first, w.tasks from duetime.draft as w
join unnest($1::uuid[], $2::integer[], $3::integer[]) as o (flow, node, first)
    on w.flow = o.flow and w.node = o.node and w.first = o.first

-- insert_members: tasks that belong to nodes
insert into duetime.member (task, flow, node, round, position, keeps)
select m.* from unnest($1::uuid[], $2::uuid[], $3::integer[], $4::integer[], $5::integer[], $6::boolean[]) as m (task,
    flow, node, round, position, keeps)

-- insert_returns: members that live again
insert into duetime.arrival (flow, node, round, ended, failed)
select m.flow, m.node, m.round, -count(*), -count(*) from duetime.member as m where m.task = any ($1::uuid[])
group by m.flow, m.node, m.round

-- ready_flows: flows in which a node may be complete, something has failed, or much is not counted yet
select distinct a.flow::text from (
    select x.flow, x.node, x.round, sum(x.ended) as ended, bool_or(x.failed <> 0) as failed, count(*) as n
    from duetime.arrival as x where $1::uuid[] is null or x.flow = any ($1::uuid[]) group by x.flow, x.node, x.round
) as a join duetime.node as k on k.flow = a.flow and k.number = a.node
where a.failed or a.n > $2::integer or k.round <> a.round or k.ended + a.ended >= k.opened limit $3::integer

-- busy_flows: flows of which members are still to be made, and stopped ones of which something may be under way
select f.id::text, f.more, f.stopping is not null and not f.swept from duetime.flow as f
where f.more or (f.stopping is not null and not f.swept) limit $1::integer

-- late_flows: flows past their deadline
select f.id::text from duetime.flow as f where f.deadline_at <= $1::bigint and f.state = 'running'
    and f.stopping is null limit $2::integer

-- stop_flow: let nothing more of a flow start
update duetime.flow set stopping = $2::text, swept = false, version = version + 1 where id = $1::uuid

-- resume_flow: let a flow go on
update duetime.flow set stopping = null, swept = false, state = 'running', finished_at = null, version = version + 1
where id = $1::uuid

-- forget_errors: nodes whose members could not be made are tried again
update duetime.node set error = '' where flow = $1::uuid and error <> ''

-- swept_flow: all that was under way in a stopped flow was told to end
update duetime.flow set swept = true where id = $1::uuid and stopping is not null

-- members_of: tasks of a node, by position
select m.task::text, m.position from duetime.member as m where m.flow = $1::uuid and m.node = $2::integer
    and m.round = $3::integer and m.position > $4::integer order by m.position limit $5::integer

-- values_of: what members of a node returned
select v.position, v.data from duetime.value as v where v.flow = $1::uuid and v.node = $2::integer order by v.position

-- flow_ids: flows, the newest first
select f.id::text from duetime.flow as f where ($1::text is null or f.state = $1::text)
    and ($2::text is null or f.name = $2::text) and ($3::uuid is null or f.id < $3::uuid)
order by f.id desc limit $4::integer

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
), kept as (
    delete from duetime.value as v using old where v.flow = old.id
)
delete from duetime.flow as f using old where f.id = old.id returning f.id
