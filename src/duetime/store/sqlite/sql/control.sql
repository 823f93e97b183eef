-- task_state: a task's number and final state
select seq, state from duetime_task where id = ?

-- mark_cancelling: tell the worker of a running task to stop it
update duetime_running set cancelling = 1 where task = ? returning worker

-- hurry_accepted: let an accepted attempt that was told to stop time out soon, and its server be told
update duetime_accepted set report_at = min(report_at, :at), deadline_at = min(deadline_at, :at),
    withdrawing = location is not null
where task = :task

-- final_task: what an operator's retry takes back
select t.seq, t.lane, t.state, t.key, t.attempt, t.outcome, t.worker, t.started_at, t.finished_at, t.detail, t.error,
    t.expires_at, l.handler
from duetime_task as t join duetime_lane as l on l.id = t.lane where t.id = ?

-- children_in_vain: those that were cancelled because these tasks did not succeed, and would wait for one of them
select distinct child from duetime_vain where parent in (select value from json_each(?)) order by child

-- waited_in_vain: what a child waited for, with the state, null if it lives
select v.parent, v.needs, p.state from duetime_vain as v join duetime_task as p on p.seq = v.parent where v.child = ?

-- forget_vain: a task that lives again waits for nothing, unless it is told so
delete from duetime_vain where child = ?

-- revive_task: a finished task lives again
update duetime_task set state = null, outcome = null, attempt = null, tries = null, crashes = null, worker = null,
started_at = null, finished_at = null, result = null, detail = null, error = null, due_at = ?, expires_at = ?
where seq = ?

-- key_holder: the live task of a key, by any name of the handler
select task from duetime_key where handler in (select value from json_each(?)) and key = ? and queued = 0

-- lane_of: where a waiting task belongs
select l.handler, l.collection, l.priority from duetime_task as t join duetime_lane as l on l.id = t.lane
    where t.seq = ?

-- move_task: change a task's lane, and its own due time if there is a new one
update duetime_task set lane = ?, due_at = coalesce(?, due_at) where seq = ?

-- change_payload: give a task other arguments
update duetime_task set payload = ? where seq = ?

-- take_parked: remove a parked task's entry and return it
delete from duetime_held where task = ? and reason in ('declaration', 'limit')
returning lane, due_at, attempt, tries, crashes

-- take_limited: the same of one that waits under a limit, because its partition may be another one now
delete from duetime_held where task = ? and reason = 'limit' returning lane, due_at, attempt, tries, crashes

-- put_gate: set a gate
insert or replace into duetime_gate (handler, collection, action, until_at, note, set_by, set_at, automatic, probe_at,
    probe_every) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- delete_gate: open a gate, whichever of a handler's names it was set by
delete from duetime_gate where handler in (select value from json_each(?)) and collection = ?

-- all_gates: every gate that is not over
select handler, collection, action, until_at, note, set_by, set_at, automatic, probe_at, probe_every from duetime_gate
where until_at is null or until_at > ?
order by handler, collection

-- next_gates_version: count a change of gates
update duetime_fact set value = value + 1 where name = 'gates_version' returning value

-- gates_version: how often gates were changed
select value from duetime_fact where name = 'gates_version'

-- move_probe: the next probe of an automatic gate, unless somebody has moved it already
update duetime_gate set probe_at = ?4 where handler in (select value from json_each(?1)) and collection = ?2
    and automatic and probe_at = ?3

-- streak: failures in a row
select failures, since_at, last from duetime_streak where handler = ? and collection = ?

-- put_streak: note failures in a row
insert or replace into duetime_streak (handler, collection, failures, since_at, last) values (?, ?, ?, ?, ?)

-- delete_streak: the row has ended
delete from duetime_streak where handler in (select value from json_each(?)) and collection = ?

-- delete_ended_gates: gates whose time is over
delete from duetime_gate where until_at is not null and until_at <= ?

-- put_handler: what a process declared, unless it did before
insert into duetime_handler (name, digest, declaration) values (?, ?, ?) on conflict do nothing

-- forget_handlers: declarations of a name but the newest two, unless a worker holds them
delete from duetime_handler where name = :name
and number not in (select number from duetime_handler where name = :name order by number desc limit 2)
and not exists (select 1 from duetime_worker as w join json_each(w.declared) as d
    where d.key = duetime_handler.name and d.value = duetime_handler.digest)

-- all_handlers: declarations, those of a name in the order in which they were first made: the last of each, and with
-- `former` those that a worker holds
select h.declaration from duetime_handler as h
where h.number = (select max(o.number) from duetime_handler as o where o.name = h.name)
or (:former and exists (select 1 from duetime_worker as w join json_each(w.declared) as d
    where d.key = h.name and d.value = h.digest))
order by h.name, h.number

-- forget_aliases: other names of a handler
delete from duetime_alias where name = ?

-- put_alias: another name of a handler
insert or replace into duetime_alias (alias, name) values (?, ?)

-- move_aliases: what led to a name that is an alias now leads to its handler
update duetime_alias set name = ? where name = ?

-- all_aliases: all other names of handlers
select alias, name from duetime_alias

-- all_fairness: handlers whose collections share its starts
select handler, declared, weights, note, set_by, set_at from duetime_fairness order by handler

-- declare_fairness: what code says of a handler; returns it if code said something else before
insert into duetime_fairness (handler, declared)
select :handler, :declared
where :declared or exists (select 1 from duetime_fairness as o where o.handler = :handler and o.declared)
on conflict (handler) do update set declared = excluded.declared where declared <> excluded.declared
returning handler

-- put_weights: weights that somebody has set, or none
insert into duetime_fairness (handler, weights, note, set_by, set_at) values (?1, ?2, ?3, ?4, ?5)
on conflict (handler) do update set weights = excluded.weights, note = excluded.note, set_by = excluded.set_by,
    set_at = excluded.set_at

-- copy_weights: what was set by a former name of a handler, unless it has its own
insert into duetime_fairness (handler, weights, note, set_by, set_at)
select ?1, weights, note, set_by, set_at from duetime_fairness where handler = ?2 on conflict do nothing

-- delete_weights: what was set by a former name
delete from duetime_fairness where handler = ?

-- quota: until when a handler's quota is used up
select used_until from duetime_quota where handler = ?

-- put_quota: the same, from now on
insert or replace into duetime_quota (handler, used_until) values (?, ?)
