-- task_state: a task's number and final state
select seq, state from duetime_task where id = ?

-- mark_cancelling: tell the worker of a running task to stop it
update duetime_running set cancelling = 1 where task = ? returning worker

-- final_task: what an operator's retry takes back
select t.seq, t.lane, t.state, t.key, t.attempt, t.outcome, t.worker, t.started_at, t.finished_at, t.error,
    t.expires_at, l.handler
from duetime_task as t join duetime_lane as l on l.id = t.lane where t.id = ?

-- revive_task: a finished task lives again
update duetime_task set state = null, outcome = null, attempt = null, tries = null, crashes = null, worker = null,
started_at = null, finished_at = null, result = null, error = null, due_at = ?, expires_at = ? where seq = ?

-- key_holder: the live task of a key
select task from duetime_key where handler = ? and key = ?

-- lane_of: where a waiting task belongs
select l.handler, l.collection, l.priority from duetime_task as t join duetime_lane as l on l.id = t.lane
    where t.seq = ?

-- move_task: change a task's lane, and its own due time if there is a new one
update duetime_task set lane = ?, due_at = coalesce(?, due_at) where seq = ?

-- put_gate: set a gate
insert or replace into duetime_gate (handler, collection, action, until_at, note, set_by, set_at)
    values (?, ?, ?, ?, ?, ?, ?)

-- delete_gate: open a gate
delete from duetime_gate where handler = ? and collection = ?

-- all_gates: every gate that is not over
select handler, collection, action, until_at, note, set_by, set_at from duetime_gate where until_at is null
    or until_at > ?
order by handler, collection

-- next_gates_version: count a change of gates
update duetime_fact set value = value + 1 where name = 'gates_version' returning value

-- gates_version: how often gates were changed
select value from duetime_fact where name = 'gates_version'

-- delete_ended_gates: gates whose time is over
delete from duetime_gate where until_at is not null and until_at <= ?

-- put_handler: what a process declared
insert or replace into duetime_handler (name, declaration) values (?, ?)

-- all_handlers: every declared handler
select declaration from duetime_handler order by name
