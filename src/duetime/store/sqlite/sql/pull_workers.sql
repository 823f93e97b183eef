-- insert_pull_worker: a worker that a server speaks for; its beats do not begin at 1, or one that was reaped and comes
-- again could show the very beat at which somebody has seen it dead
insert into duetime_worker (id, host, pid, slots, started_at, process, lease, beat, beat_at, declared)
values (:id, :name, 0, :slots, :now, '', :lease, abs(random() % 1000000000), :now, :declared)
on conflict (id) do update set host = excluded.host, slots = excluded.slots, lease = excluded.lease, beat = beat + 1,
    beat_at = excluded.beat_at, declared = excluded.declared
where lease is not null

-- pull_worker_by_id: what is known of a pull worker
select host, slots, lease, declared, draining from duetime_worker where id = ? and lease is not null

-- renew_pull_worker: a beat
update duetime_worker set beat = beat + 1, beat_at = ? where id = ? and lease is not null

-- claim_in_use: whether a worker runs attempts under a claim number
select 1 from duetime_running where worker = ? and claim = ?

-- pull_worker_beat: the beat of a pull worker
select beat from duetime_worker where id = ? and lease is not null

-- running_tasks_head: the tasks that a worker runs
select t.id, l.handler, case when :payloads then cast(t.payload as text) else '' end, r.attempt, r.tries, r.crashes,
    r.due_at, t.due_at, t.submitted_at, t.submitted_by, t.expires_at, t.timeout, cast(t.retry as text), t.extras, t.key,
    nullif(l.collection, ''), l.priority, t.schedule, t.planned_at,
    (select max(value, 0) from duetime_fact where name = 'epoch'), r.claim, r.cancelling, r.claimed_at
from duetime_running as r cross join duetime_task as t on t.seq = r.task cross join duetime_lane as l on l.id = t.lane
where r.worker = :worker

-- running_tasks_among: only those of these tasks
and r.id in (select value from json_each(:ids))

-- running_tasks_order: as they would be started
order by r.claim, l.priority desc, r.due_at, r.task
