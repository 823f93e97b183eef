-- insert_pull_worker: a worker that a server speaks for. Its lease stands apart: `lease` is what claims wait for after
-- a fail-over.
insert into duetime.worker (id, host, pid, slots, started_at, lease, beat, beat_at, seen_gates, pull_lease,
    declared)
values ($2::text, $3::text, 0, $4::text, coalesce($1::bigint, duetime.clock()), 0, (random() * 1000000000)::bigint,
    coalesce($1::bigint, duetime.clock()), 9223372036854775807, $5::double precision, $6::text)
on conflict (id) do update set host = excluded.host, slots = excluded.slots, pull_lease = excluded.pull_lease,
    beat = duetime.worker.beat + 1, beat_at = excluded.beat_at, declared = excluded.declared
where duetime.worker.pull_lease is not null

-- pull_worker_by_id: what is known of a pull worker
select host, slots, pull_lease, declared, draining from duetime.worker where id = $1::text and pull_lease is not null

-- renew_pull_worker: a beat
update duetime.worker set beat = beat + 1, beat_at = coalesce($1::bigint, duetime.clock()) where id = $2::text
    and pull_lease is not null returning id

-- holdings: attempts that a worker holds, of these tasks (null: all), with their tasks, and their payloads if asked for
select r.id::text, l.handler, case when $3::boolean then coalesce(r.payload, t.payload) else '' end, r.attempt, r.tries,
    r.crashes, r.due_at, coalesce(t.due_at, r.due_at), coalesce(t.submitted_at, r.submitted_at),
    coalesce(t.submitted_by, r.submitted_by),
    t.expires_at, t.timeout, t.retry, t.extras, t.key, nullif(l.collection, ''), l.priority, t.schedule, t.planned_at,
    (select c.epoch from duetime.control as c), r.number, r.cancelling, r.claimed_at
from duetime.open_attempt as r join duetime.lane as l on l.id = r.lane
left join lateral (select x.* from duetime.task as x where x.id = r.id offset 0) as t on true
where r.worker = $1::text and ($2::uuid[] is null or r.id = any ($2::uuid[]))
    and (t.id is not null or r.payload is not null)
order by r.number, l.priority desc, r.due_at, r.index
