-- record: the columns of a task, wherever it is
select t.seq, t.id, t.payload, t.due_at, t.submitted_at, t.submitted_by, t.key, t.expires_at, t.timeout, t.retry,
    t.extras, t.schedule, t.planned_at, t.state, t.attempt, t.tries, t.crashes, t.worker, t.started_at, t.finished_at,
    t.result,
    case when t.state is null then (select a.error from duetime_attempt as a where a.task = t.seq
    order by a.attempt desc limit 1) else t.error end, l.handler, l.collection, l.priority,
    d.due_at, d.attempt, d.tries, d.crashes,
    h.due_at, h.attempt, h.tries, h.crashes, h.reason,
    r.due_at, r.attempt, r.tries, r.crashes, r.worker, r.claimed_at, r.cancelling, r.progress, r.progress_text,
    case when r.worker = '' then (select a.report_at from duetime_accepted as a where a.task = r.task) end

-- from_all: every task
from duetime_task as t join duetime_lane as l on l.id = t.lane
left join duetime_due as d on d.task = t.seq left join duetime_held as h on h.task = t.seq
    left join duetime_running as r on r.task = t.seq

-- from_due: tasks that only time holds back, read along the index of due entries
from duetime_due as d indexed by duetime_due_task cross join duetime_task as t on t.seq = d.task join duetime_lane
    as l on l.id = t.lane
left join duetime_held as h on h.task = t.seq left join duetime_running as r on r.task = t.seq

-- from_held: tasks that wait for something other than time
from duetime_held as h cross join duetime_task as t on t.seq = h.task join duetime_lane as l on l.id = t.lane
left join duetime_due as d on d.task = t.seq left join duetime_running as r on r.task = t.seq

-- from_parked: tasks that wait for a worker whose code they fit
from duetime_held as h indexed by duetime_held_parked_task cross join duetime_task as t on t.seq = h.task
join duetime_lane as l on l.id = t.lane
left join duetime_due as d on d.task = t.seq left join duetime_running as r on r.task = t.seq

-- from_running: tasks with a live attempt
from duetime_running as r cross join duetime_task as t on t.seq = r.task join duetime_lane as l on l.id = t.lane
left join duetime_due as d on d.task = t.seq left join duetime_held as h on h.task = t.seq

-- where_ids: some tasks by id
where t.id in (select value from json_each(?))

-- where_seqs: some tasks by number
where t.seq in (select value from json_each(?))

-- where_key: tasks that have or had a key, the live one first, then who waits behind it, then who finished last
where t.key = :key and l.handler in (select value from json_each(:names))
order by t.state is not null, exists (select 1 from duetime_key as k where k.task = t.seq and k.queued = 1),
    t.finished_at desc, t.seq desc limit 1

-- only_state: one final state, whose name follows
t.state = 

-- only_handler: one handler, by all its names
l.handler in (select value from json_each(:handler))

-- only_collection: one collection
l.collection = :collection

-- only_key: one key
t.key = :key

-- only_ids: tasks whose ids lie in a range, looked up in the index of ids
t.seq in (select x.seq from duetime_task as x where x.id >= :least_id and x.id <= :greatest_id)

-- only_schedule: one schedule
t.schedule = :schedule

-- only_retrying: waiting for another try, or not
(t.state is null and coalesce(d.tries, h.tries, 0) > 0) = :retrying

-- only_parked: waiting for a worker whose code they fit, or not
(h.reason is not null and h.reason in ('declaration', 'limit')) = :parked

-- only_due_after: due at or after an instant
coalesce(d.due_at, h.due_at, r.due_at, t.due_at) >= :due_after

-- only_due_before: due before an instant
coalesce(d.due_at, h.due_at, r.due_at, t.due_at) < :due_before

-- only_submitted_after: submitted at or after an instant
t.submitted_at >= :submitted_after

-- only_submitted_before: submitted before an instant
t.submitted_at < :submitted_before

-- only_finished_after: finished at or after an instant
t.finished_at >= :finished_after

-- only_finished_before: finished before an instant
t.finished_at < :finished_before

-- only_with_error: tasks that ended with an error; what is in it is looked at one by one
t.error is not null and t.state is not null

-- only_priority_from: a priority or higher ones
l.priority >= :priority_min

-- only_priority_to: a priority or lower ones
l.priority <= :priority_max

-- lane_handlers: all handlers that have or had tasks
select distinct handler from duetime_lane

-- count_matches: how many tasks match, up to a limit
select count(*) from (:matches)

-- only_fingerprint: one kind of failure, of tasks that have finished; as the index has it
t.error is not null and t.error ->> 'fingerprint' = :fingerprint

-- submitted_facts: what is known of the order of submitting, see the migration `submitted`
select (select value from duetime_fact where name = 'submitted_high'), (select value from duetime_fact
    where name = 'submitted_back')

-- seq_range: the lowest and the highest number of a task; asked in one, all would be walked
select (select min(seq) from duetime_task), (select max(seq) from duetime_task)

-- submitted_next: when the first task among some numbers was submitted
select seq, submitted_at from duetime_task where seq >= ? and seq < ? order by seq limit 1

-- beyond_seq: where a page by submission continues
t.seq < :seq

-- beyond_finished: where a page by end continues
(t.finished_at, t.seq) < (:finished_at, :seq)

-- beyond_due: the same, by the entry that is walked along; a condition on the task would not let the walk begin
-- there
d.task < :seq

-- beyond_held: the same
h.task < :seq

-- beyond_running: the same
r.task < :seq

-- since_seq: where a list by submission ends
t.seq >= :since_seq

-- since_due: the same, by the entry that is walked along
d.task >= :since_seq

-- since_held: the same
h.task >= :since_seq

-- since_running: the same
r.task >= :since_seq

-- stands_pending: pending tasks, where they are found by something else
(d.task is not null or h.reason in ('declaration', 'limit'))

-- stands_held: tasks that wait for other tasks
h.reason not in ('declaration', 'limit')

-- stands_parked: tasks that wait for a worker whose code they fit
h.reason in ('declaration', 'limit')

-- stands_running: tasks with a live attempt, where they are found by something else
r.task is not null

-- order_seq: newest submitted first
order by t.seq desc limit :limit

-- order_due: the same along the entries: ordered by the task, all of them would be sorted for one page
order by d.task desc limit :limit

-- order_held: the same
order by h.task desc limit :limit

-- order_running: the same
order by r.task desc limit :limit

-- order_finished: latest finished first
order by t.finished_at desc, t.seq desc limit :limit

-- attempts_of_task: attempts of a task in order, beyond a number
select a.attempt, a.outcome, a.worker, a.started_at, a.finished_at, a.detail, a.error
    from duetime_attempt as a join duetime_task as t on t.seq = a.task where t.id = :id
    and a.attempt > :after
union all
select t.attempt, t.outcome, t.worker, t.started_at, t.finished_at, t.detail, t.error from duetime_task as t
    where t.id = :id and t.outcome is not null and t.attempt > :after
union all
select r.attempt, null, coalesce(nullif(r.worker, ''), (select a.sender from duetime_accepted as a
    where a.task = r.task)), max(r.claimed_at, r.due_at), null, null, null from duetime_running as r
    where r.id = :id and r.attempt > :after
order by 1 limit :limit

-- count_due: waiting tasks by lane, of each lane up to a limit of those that are due and of those that are not
select x.handler, x.collection, x.priority, x.due, x.later, (select min(d.due_at) from (
    select d.due_at from duetime_due as d where d.lane = x.id and d.pos <= :now limit :limit) as d)
from (
    select l.id, l.handler, l.collection, l.priority,
        (select count(*) from (select 1 from duetime_due as d where d.lane = l.id and d.pos <= :now limit :limit))
            as due,
        (select count(*) from (select 1 from duetime_due as d where d.lane = l.id and d.pos > :now limit :limit))
            as later
    from duetime_lane as l
) as x where x.due + x.later > 0

-- count_held: held tasks by lane: those that wait for others, and those that are parked
select l.handler, l.collection, l.priority, sum(h.reason not in ('declaration', 'limit')),
    sum(h.reason in ('declaration', 'limit'))
from duetime_held as h join duetime_lane as l on l.id = h.lane group by h.lane

-- count_running: running tasks by lane
select l.handler, l.collection, l.priority, count(*), sum(r.worker = '')
from duetime_running as r join duetime_lane as l on l.id = r.lane
    group by r.lane

-- count_final: finished tasks by handler and state
select l.handler, t.state, count(*) from duetime_task as t join duetime_lane as l on l.id = t.lane
    where t.state is not null group by l.handler, t.state

-- handler_load: what of a handler is due, up to a limit: only its own lanes are looked into
with own as materialized (
    select id from duetime_lane where handler in (select value from json_each(:names))
), waiting as materialized (
    select d.due_at from own as l cross join duetime_due as d on d.lane = l.id and d.pos <= :now limit :limit
)
select count(*), min(due_at) from waiting

-- lanes_of: the lanes of a handler, by all its names
select id from duetime_lane where handler in (select value from json_each(?))

-- first_due: the earliest due entries of a lane
select pos, task from duetime_due where lane = ? order by pos, task limit ?

-- unmet_edges: what a task waits for
select p.id, e.needs from duetime_task as c join duetime_edge as e on e.child = c.seq
    join duetime_task as p on p.seq = e.parent where c.id = ? order by p.id
