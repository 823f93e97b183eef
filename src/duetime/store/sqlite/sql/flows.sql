-- Flows, their nodes and members.

-- insert_flow: a new flow
insert into duetime_flow (id, name, state, graph, submitted_at, submitted_by, deadline_at, meta, key, holds_key)
values (?, ?, 'running', ?, ?, ?, ?, ?, ?, ?) on conflict do nothing returning id

-- key_of_flow: the live flow that has this key
select id from duetime_flow where name = ? and key = ? and holds_key

-- insert_node: a node of a new flow
insert into duetime_node (flow, number) values (?, ?)

-- insert_draft: tasks of a node that are to be made
insert into duetime_draft (flow, node, first, tasks) values (?, ?, ?, ?)

-- read_flows: flows by id
select f.id, f.name, f.state, f.stopping, f.graph, f.submitted_at, f.submitted_by, f.deadline_at, f.finished_at, f.meta,
    f.key
from json_each(?) as asked cross join duetime_flow as f on f.id = asked.value order by f.id

-- flow_nodes: what is known of the nodes of flows
select n.flow, n.number, n.round, n.opened, n.ended, n.failed, n.error, n.members
from json_each(?) as asked cross join duetime_node as n on n.flow = asked.value

-- flow_arrivals: what is not counted yet
select a.flow, a.seq, a.node, a.round, a.ended, a.failed
from json_each(?) as asked cross join duetime_arrival as a on a.flow = asked.value

-- single_values: what nodes with one member returned, if somebody reads it
select v.flow, v.node, v.data, v.items
from json_each(?) as asked cross join duetime_node as n on n.flow = asked.value
cross join duetime_value as v on v.flow = n.flow and v.node = n.number and v.round = n.round and v.position = 0

-- count_arrivals: what is counted in now
delete from duetime_arrival where seq in (select value from json_each(?))

-- write_flow: how a flow goes on
update duetime_flow as f set state = ?1, stopping = ?2, more = ?3, finished_at = ?4,
    version = version + 1, holds_key = f.key is not null and ?4 is null and (f.holds_key or not exists (
        select 1 from duetime_flow as o where o.name = f.name and o.key = f.key and o.holds_key))
where id = ?5

-- write_node: how a node goes on
update duetime_node set opened = ?, ended = ?, failed = ?, error = ?, members = ? where flow = ? and number = ?

-- read_draft: tasks of a node that are to be made
select tasks from duetime_draft where flow = ? and node = ? and first = ?

-- insert_member: a task that belongs to a node
insert into duetime_member (task, flow, node, round, position, keeps) select t.seq, ?, ?, ?, ?, ?
from duetime_task as t where t.id = ?

-- member_between: whether a task of a range belongs to a flow
select 1 from duetime_member where task between ? and ? limit 1

-- any_arrival: whether something is not counted yet
select 1 from duetime_arrival limit 1

-- insert_arrivals: members that have ended
insert into duetime_arrival (flow, node, round, ended, failed)
select m.flow, m.node, m.round, count(*), sum(t.state <> 'succeeded')
from json_each(?) as e cross join duetime_member as m on m.task = e.value cross join duetime_task as t on t.seq = m.task
group by m.flow, m.node, m.round

-- insert_values: what ended members returned that somebody reads
insert or replace into duetime_value (flow, node, round, position, data, items)
select m.flow, m.node, m.round, m.position, coalesce(cast(t.result as text), 'null'), (
    select sum(p.items) from duetime_piece as p where p.flow = m.flow and p.node = m.node and p.round = m.round
        and p.position = m.position and p.attempt = t.attempt)
from json_each(?) as e cross join duetime_member as m on m.task = e.value cross join duetime_task as t on t.seq = m.task
where m.keeps and t.state = 'succeeded'

-- any_piece: whether something was yielded that is kept
select 1 from duetime_piece limit 1

-- forget_pieces: what attempts of ended members had yielded without success
delete from duetime_piece where (flow, node, round, position, first) in (
    select p.flow, p.node, p.round, p.position, p.first
    from json_each(?) as e cross join duetime_member as m on m.task = e.value
    cross join duetime_task as t on t.seq = m.task
    cross join duetime_piece as p on p.flow = m.flow and p.node = m.node and p.round = m.round
        and p.position = m.position
    where t.state <> 'succeeded' or p.attempt <> t.attempt)

-- yielding: the member that a task is, whether somebody reads it, and whether the worker runs this attempt of it
select m.flow, m.node, m.round, m.position, m.keeps, exists (
    select 1 from duetime_running as r where r.id = t.id and r.attempt = ? and r.worker = ?)
from duetime_task as t join duetime_member as m on m.task = t.seq where t.id = ?

-- put_piece: the next items that a member has yielded
insert or replace into duetime_piece (flow, node, round, position, first, items, attempt, data)
values (?, ?, ?, ?, ?, ?, ?, ?)

-- pieces_of: what a member has yielded, from an item on
select first, items, data from duetime_piece where flow = ? and node = ? and round = ? and position = ? and first > ?
    and first + items > ? order by first limit ?

-- has_yielded: whether a member has succeeded with what it yielded
select 1 from duetime_value where flow = ? and node = ? and round = ? and position = ? and items is not null

-- round_of: the present round of a node
select round from duetime_node where flow = ? and number = ?

-- flow_of: the flow that a task belongs to
select m.flow from duetime_task as t join duetime_member as m on m.task = t.seq where t.id = ?

-- passed_member: whether a task belongs to an earlier round of its node
select 1 from duetime_member as m join duetime_node as n on n.flow = m.flow and n.number = m.node
where m.task = ? and m.round <> n.round

-- insert_return: a member that lives again
insert into duetime_arrival (flow, node, round, ended, failed)
select m.flow, m.node, m.round, -1, -1 from duetime_member as m where m.task = ?

-- forget_members: tasks that are gone
delete from duetime_member where task in (select value from json_each(?))

-- ready_flows: flows in which a node may be complete, something has failed, or much is not counted yet
select distinct a.flow from (
    select flow, node, round, sum(ended) as ended, max(failed <> 0) as failed, count(*) as n from duetime_arrival
    where :flows is null or flow in (select value from json_each(:flows)) group by flow, node, round
) as a join duetime_node as k on k.flow = a.flow and k.number = a.node
where a.failed or a.n > :many or k.round <> a.round or k.ended + a.ended >= k.opened limit :limit

-- busy_flows: flows of which members are still to be made
select id from duetime_flow indexed by duetime_flow_busy
where (more or (stopping is not null and not swept)) and more limit ?

-- unswept_flows: stopped flows of which something may still be under way
select id from duetime_flow indexed by duetime_flow_busy
where (more or (stopping is not null and not swept)) and stopping is not null and not swept limit ?

-- running_of: those of these flows that run
select f.id from json_each(?) as asked cross join duetime_flow as f on f.id = asked.value where f.state = 'running'
order by f.id

-- lost_flows: flows for whose ends tasks had waited that are over; such a task has the id of the flow
select t.id from duetime_step as s indexed by duetime_step_waiting join duetime_task as t on t.seq = s.task
where s.done = 0 and s.signal is not null and s.signal > ? and s.signal < ? and t.state is not null limit ?

-- close_awaiting: nobody waits for the ends of these flows any more
delete from duetime_step where done = 0 and signal is not null and signal in (select value from json_each(?))

-- late_flows: flows past their deadline
select id from duetime_flow where deadline_at <= ? and state = 'running' and stopping is null limit ?

-- stop_flow: let nothing more of a flow start
update duetime_flow set stopping = ?, swept = 0, version = version + 1 where id = ?

-- resume_flow: let a flow go on
update duetime_flow set stopping = null, swept = 0, more = 1, state = 'running', finished_at = null,
    version = version + 1
where id = ?

-- undo_again: let what undoes a flow go on; the flow stays stopped
update duetime_flow set more = 1, state = 'running', finished_at = null,
    version = version + 1
where id = ?

-- forget_errors: nodes whose members could not be made are tried again
update duetime_node set error = '' where flow = ? and error <> ''

-- begin_round: a node and what follows from it begin again
update duetime_node set round = round + 1, opened = 0, ended = 0, failed = 0, error = '', members = null
where flow = ? and number in (select value from json_each(?))

-- swept_flow: all that was under way in a stopped flow was told to end
update duetime_flow set swept = 1 where id = ? and stopping is not null

-- members_of: tasks of a node, by position
select t.id, m.position from duetime_member as m join duetime_task as t on t.seq = m.task
where m.flow = ? and m.node = ? and m.round = ? and m.position > ? order by m.position limit ?

-- values_of: what members of a node returned
select position, data, items from duetime_value where flow = ? and node = ? and round = ? order by position

-- next_values: what members of a node returned, from a position on
select position, data, items from duetime_value where flow = ? and node = ? and round = ? and position > ?
order by position limit ?

-- flow_ids: flows, the newest first
select id from duetime_flow where (:state is null or state = :state) and (:name is null or name = :name)
    and (:before is null or id < :before) order by id desc limit :limit

-- flow_counts: how many flows there are, by name and state
select name, state, count(*) from duetime_flow group by name, state order by name, state

-- running_flows: the next running flows by id, and which of them the duty looks at
select id, more or (stopping is not null and not swept) from duetime_flow where state = 'running' and id > ?
order by id limit ?

-- ends_of_members: how many members of flows live, and have ended without success
select m.flow, m.node, sum(t.state is null), sum(t.state is not null and t.state <> 'succeeded')
from json_each(?) as asked cross join duetime_node as n on n.flow = asked.value
cross join duetime_member as m on m.flow = n.flow and m.node = n.number and m.round = n.round
cross join duetime_task as t on t.seq = m.task group by m.flow, m.node

-- correct_node: counts as they must be
update duetime_node set ended = ?, failed = ? where flow = ? and number = ?

-- wake_flow: let the duty look at a flow
update duetime_flow set more = 1 where id = ?

-- strays_of_flows: flows that are gone, but of which something is left
select x.flow from duetime_node as x where not exists (select 1 from duetime_flow as f where f.id = x.flow)
union select x.flow from duetime_draft as x where not exists (select 1 from duetime_flow as f where f.id = x.flow)
union select x.flow from duetime_member as x where not exists (select 1 from duetime_flow as f where f.id = x.flow)
union select x.flow from duetime_arrival as x where not exists (select 1 from duetime_flow as f where f.id = x.flow)
union select x.flow from duetime_value as x where not exists (select 1 from duetime_flow as f where f.id = x.flow)
union select x.flow from duetime_piece as x where not exists (select 1 from duetime_flow as f where f.id = x.flow)

-- old_flows: flows that ended long ago
select id from duetime_flow where finished_at < ? order by finished_at limit ?

-- delete_flows: flows that are gone
delete from duetime_flow where id in (select value from json_each(?))

-- delete_nodes: nodes of flows that are gone
delete from duetime_node where flow in (select value from json_each(?))

-- delete_drafts: tasks of flows that are gone
delete from duetime_draft where flow in (select value from json_each(?))

-- delete_members: members of flows that are gone
delete from duetime_member where flow in (select value from json_each(?))

-- delete_arrivals: arrivals in flows that are gone
delete from duetime_arrival where flow in (select value from json_each(?))

-- delete_yielded: what members of flows that are gone had yielded
delete from duetime_piece where flow in (select value from json_each(?))

-- delete_values: values of flows that are gone
delete from duetime_value where flow in (select value from json_each(?))
