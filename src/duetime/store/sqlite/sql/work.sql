-- insert_worker: make a worker known, or known again
insert or replace into duetime_worker (id, host, pid, slots, concurrency, started_at, process, declared, draining,
    version, python)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- change_slots: what a worker runs now
update duetime_worker set slots = ?, declared = ?, concurrency = ? where id = ?

-- drain_worker: let a worker claim nothing, or again
update duetime_worker set draining = ? where id = ?

-- note_lag: how late the event loop of a worker answers
update duetime_worker set lag = ? where id = ?

-- mark_lost: a worker that is about to be forgotten because it died
update duetime_worker set lost_at = ? where id = ?

-- delete_worker: forget a worker
delete from duetime_worker where id = ?

-- worker_known: whether a worker is registered, with the mark of its process, and whether it drains
select process, draining from duetime_worker where id = ?

-- worker_may_claim: whether a worker is registered and does not drain
select 1 from duetime_worker where id = ? and not draining

-- all_workers: every registered worker with its number of attempts
select w.id, w.host, w.pid, w.slots, w.started_at, w.process, coalesce(w.lease, 15.0), w.lease is not null, w.beat,
    w.beat_at, (select count(*) from duetime_running as r where r.worker = w.id), w.concurrency, w.draining,
    w.version, w.python, w.lag
from duetime_worker as w order by w.started_at, w.id

-- running_by_worker: how many attempts each worker has of each handler
select r.worker, l.handler, count(*) from duetime_running as r join duetime_lane as l on l.id = r.lane
    where r.worker <> '' group by r.worker, l.handler

-- epoch: what fences begin with
select value from duetime_fact where name = 'epoch'

-- begin_epoch: the first claim in a copy of a store
update duetime_fact set value = ? where name = 'epoch'

-- lanes_with_work: lanes and roads (below zero) whose next position may be due
select id, handler, collection, priority from duetime_lane where next_at <= ?1
union all
select -id, handler, '', priority from duetime_road where next_at <= ?1

-- lanes_on_road: the lanes of a road
select id, handler, collection, priority from duetime_lane where id > -((1 - ?1) << 20) and id < -(-?1 << 20)

-- lanes_later: lanes with work in the future, earliest first
select handler, next_at from duetime_lane where next_at > ? and next_at < 4611686018427387904 order by next_at

-- roads_later: the same of roads
select handler, next_at from duetime_road where next_at > ? and next_at < 4611686018427387904 order by next_at

-- first_in_lane: the tasks of the first due entries of a lane, as one JSON array
select json_group_array(task) from (select task from duetime_due where lane = ? and pos <= ? order by pos, task limit ?)

-- first_on_road: the same of a road
select json_group_array(task) from (select task from duetime_due where lane < 0 and -lane >> 20 = -?1 and pos <= ?2
    order by pos, task limit ?3)

-- first_in_lanes: the first due entries of each of these lanes or roads, [lane, [[pos, task], …]] each, as one JSON
-- array
select json_group_array(json_array(l.value, case when l.value between -1048576 and -1 then (
    select json_group_array(json_array(pos, task)) from (
        select pos, task from duetime_due where lane < 0 and -lane >> 20 = -l.value and pos <= ?2
            order by pos, task limit ?3))
    else (
    select json_group_array(json_array(pos, task)) from (
        select pos, task from duetime_due where lane = l.value and pos <= ?2 order by pos, task limit ?3)) end))
from json_each(?1) as l

-- scan_lane: due entries of a lane in order, but for the first ones
select lane, pos, task, due_at, attempt, tries, crashes from duetime_due where lane = ? and pos <= ? order by pos, task
    limit ? offset ?

-- scan_road: the same of a road
select lane, pos, task, due_at, attempt, tries, crashes from duetime_due
where lane < 0 and -lane >> 20 = -?1 and pos <= ?2 order by pos, task limit ?3 offset ?4

-- raise_lanes: remember that these lanes have nothing before their next entries
update duetime_lane set next_at = coalesce((select min(pos) from duetime_due where lane = duetime_lane.id),
    4611686018427387904) where id in (select value from json_each(?))

-- raise_roads: the same of roads
update duetime_road set next_at = coalesce((
    select min(pos) from duetime_due where lane < 0 and -lane >> 20 = duetime_road.id), 4611686018427387904)
where id in (select -value from json_each(?))

-- claimed_tasks: what attempts need to know of their tasks, in the order of these numbers, as one JSON array
select json_group_array(json_array(
    t.id, l.handler, cast(t.payload as text), r.attempt, r.tries, r.crashes, r.due_at, t.due_at, t.submitted_at,
    t.submitted_by, t.expires_at, t.timeout, cast(t.retry as text), json(t.extras), t.key, nullif(l.collection, ''),
    l.priority, t.schedule, t.planned_at))
from json_each(?) as claimed cross join duetime_task as t on t.seq = claimed.value
cross join duetime_running as r on r.task = t.seq cross join duetime_lane as l on l.id = t.lane

-- delete_due: entries of these tasks
delete from duetime_due where task in (select value from json_each(?))

-- insert_running: claims of these tasks, which have due entries
insert into duetime_running (id, task, lane, worker, claim, attempt, tries, crashes, due_at, claimed_at)
select t.id, d.task, d.lane, :worker, :claim, d.attempt + 1, d.tries, d.crashes, d.due_at, :now
from json_each(:tasks) as chosen cross join duetime_due as d on d.task = chosen.value
    cross join duetime_task as t on t.seq = d.task

-- held_by_worker: the worker's attempts among these ids, as one JSON array
select json_group_array(json_array(id, task, lane, due_at, claimed_at, attempt, cancelling))
from duetime_running where worker = ? and id in (select value from json_each(?))

-- attempts_of_worker: all attempts of a worker
select id, attempt, claim, cancelling, tries, crashes from duetime_running where worker = ? order by claim, id

-- delete_running: attempts that ended
delete from duetime_running where id in (select value from json_each(?))

-- finish_task: how a task ended
update duetime_task set state = ?, outcome = ?, attempt = ?, tries = ?, crashes = ?, worker = ?, started_at = ?,
    finished_at = ?, result = ?, detail = ?, error = ?
where seq = ?

-- finish_succeeded: plain successes, [task, started_at, finished_at] each, all in one step while they still stand in
-- running
update duetime_task as t set state = 'succeeded', outcome = 'succeeded', attempt = r.attempt, tries = r.tries,
    crashes = r.crashes, worker = r.worker, started_at = ended.value ->> 1, finished_at = ended.value ->> 2
from json_each(?) as ended cross join duetime_running as r on r.task = ended.value ->> 0 where t.seq = r.task

-- finish_detailed: the same with a detail, [task, started_at, finished_at, detail] each
update duetime_task as t set state = 'succeeded', outcome = 'succeeded', attempt = r.attempt, tries = r.tries,
    crashes = r.crashes, worker = r.worker, started_at = ended.value ->> 1, finished_at = ended.value ->> 2,
    detail = ended.value ->> 3
from json_each(?) as ended cross join duetime_running as r on r.task = ended.value ->> 0 where t.seq = r.task

-- free_keys: let go of the keys of finished tasks
delete from duetime_key where task in (select value from json_each(?))

-- promote: give tasks that were queued behind the holder of their key that key, once it has ended
update duetime_key set queued = 0 where queued = 1 and task in (select value from json_each(?))
    and not exists (select 1 from duetime_key as h where h.handler = duetime_key.handler and h.key = duetime_key.key
        and h.queued = 0)

-- edge_between: whether somebody waits for a task of a range
select 1 from duetime_edge where parent between ? and ? limit 1

-- take_edges: edges from finished tasks
delete from duetime_edge where parent in (select value from json_each(?)) returning parent, child, needs

-- insert_vain: a parent that a child has waited for in vain, or would still wait for
insert into duetime_vain (child, parent, needs) values (?, ?, ?)

-- keep_open_edges: what a child that is cancelled in vain would still have waited for
insert into duetime_vain (child, parent, needs) select child, parent, needs from duetime_edge where child = ?

-- drop_edges_to: edges to a task that waits no more
delete from duetime_edge where child = ?

-- lower_waiting: one thing less to wait for
update duetime_held set waiting = waiting - ? where task = ? returning waiting

-- take_held: a task that waits no more
delete from duetime_held where task = ? returning lane, due_at, attempt, tries, crashes

-- insert_attempt: an ended attempt that was not the last
insert into duetime_attempt (task, attempt, outcome, worker, started_at, finished_at, detail, error)
    values (?, ?, ?, ?, ?, ?, ?, ?)

-- leave_out_attempts: attempts of a task between the first and the last, which are kept
delete from duetime_attempt where task = ? and attempt > ? and attempt <= ?

-- settled_before: whether this attempt of this worker has ended already; what a reaper wrote for it is another's word
select 1 from duetime_task as t where t.id = :id and (
    (t.state is not null and t.attempt = :attempt and t.worker = :worker
        and (t.outcome = :outcome or t.outcome not in ('lost', 'released')))
    or exists (
        select 1 from duetime_attempt as a
        where a.task = t.seq and a.attempt = :attempt and a.worker = :worker
        and (a.outcome = :outcome or a.outcome not in ('lost', 'released'))))

-- mark_progress: how far an attempt is
update duetime_running set progress = ?, progress_text = ? where id = ? and attempt = ? and worker = ?

-- running_of_worker: everything needed to end a worker's attempts
select r.id, r.task, r.lane, r.due_at, r.claimed_at, r.attempt, r.tries, r.crashes, r.cancelling, t.due_at,
    t.expires_at, l.handler
from duetime_running as r join duetime_task as t on t.seq = r.task join duetime_lane as l on l.id = r.lane
where r.worker = ?

-- id_of: the id of a task by its number
select id from duetime_task where seq = ?

-- next_in_lanes: the first entry of these lanes and roads after an instant
select min(case when l.value between -1048576 and -1
    then (select min(pos) from duetime_due where lane < 0 and -lane >> 20 = -l.value and pos > ?1)
    else (select min(pos) from duetime_due where lane = l.value and pos > ?1) end)
from json_each(?2) as l

-- refuse: note that a task does not fit a declaration
insert or ignore into duetime_refusal (task, digest) values (?, ?)

-- forget_refusals: a task has another payload, which may fit
delete from duetime_refusal where task = ?

-- insert_parked: a task that waits for a worker whose code it fits
insert into duetime_held (task, lane, reason, waiting, due_at, attempt, tries, crashes, refused)
values (:task, :lane, 'declaration', 0, :due_at, :attempt, :tries, :crashes, coalesce((select group_concat(r.digest,
    ' ') from (select digest from duetime_refusal where task = :task order by digest) as r), ''))

-- parked_kinds: lanes with parked tasks, and which declarations have refused those; there are few of them, however
-- many tasks are parked
select l.id, l.handler, l.collection, k.refused
from (select distinct lane, refused from duetime_held indexed by duetime_held_parked
    where reason in ('declaration', 'limit') and reason = 'declaration')
    as k
join duetime_lane as l on l.id = k.lane order by l.priority desc, l.id

-- parked_of: parked tasks of one kind that are due, earlier submitted first
select h.task from duetime_held as h indexed by duetime_held_parked cross join duetime_task as t on t.seq = h.task
where h.reason in ('declaration', 'limit') and h.reason = 'declaration'
    and h.lane = :lane and h.refused = :refused and h.due_at <= :now
    and (t.expires_at is null or t.expires_at > :now)
order by h.task limit :limit

-- claim_parked: claims of these tasks, which are parked
insert into duetime_running (id, task, lane, worker, claim, attempt, tries, crashes, due_at, claimed_at)
select t.id, h.task, h.lane, :worker, :claim, h.attempt + 1, h.tries, h.crashes, h.due_at, :now
from json_each(:tasks) as chosen cross join duetime_held as h on h.task = chosen.value
    cross join duetime_task as t on t.seq = h.task

-- delete_held: held entries of these tasks
delete from duetime_held where task in (select value from json_each(?))

-- ping: a write that changes nothing
update duetime_fact set value = value where false

-- payload_sizes: how long the payloads of some tasks are
select seq, length(payload) from duetime_task where seq in (select value from json_each(?))

-- due_of_ways: how many entries are due in lanes and roads, counted as far as a limit in each
select coalesce(sum(case when l.value between -1048576 and -1 then (
    select count(*) from (select 1 from duetime_due where lane < 0 and -lane >> 20 = -l.value and pos <= ?2 limit ?3))
    else (select count(*) from (select 1 from duetime_due where lane = l.value and pos <= ?2 limit ?3)) end), 0)
from json_each(?1) as l

-- due_of_lanes: the same of each lane, with what it is
select l.id, l.handler, l.collection, l.priority,
    (select count(*) from (select 1 from duetime_due where lane = l.id and pos <= ?2 limit ?3))
from json_each(?1) as e cross join duetime_lane as l on l.id = e.value

-- all_due_lanes: lanes of a handler in which something is due
select collection, id from duetime_lane as l
where handler = ?1 and exists (select 1 from duetime_due where lane = l.id and pos <= ?2)

-- newly_due_lanes: lanes of a road in which something has become due since; of the newest of it, if that is much
select distinct l.collection, l.id from (select lane from duetime_due
    where lane < 0 and -lane >> 20 = ?1 and pos > ?2 and pos <= ?3 order by pos desc limit 1000) as d
cross join duetime_lane as l on l.id = d.lane
