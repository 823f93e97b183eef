-- insert_guest: a worker that a server speaks for. Its lease stands apart: `lease` is what claims wait for after a fail-over.
insert into duetime.worker (id, host, pid, slots, started_at, lease, beat, beat_at, seen_gates, guest_lease)
values ($2::text, $3::text, 0, $4::text, coalesce($1::bigint, duetime.clock()), 0, (random() * 1000000000)::bigint,
    coalesce($1::bigint, duetime.clock()), 9223372036854775807, $5::double precision)
on conflict (id) do update set host = excluded.host, slots = excluded.slots, guest_lease = excluded.guest_lease,
    beat = duetime.worker.beat + 1, beat_at = excluded.beat_at
where duetime.worker.guest_lease is not null

-- guest_by_id: what is known of a guest
select host, slots, guest_lease from duetime.worker where id = $1::text and guest_lease is not null

-- renew_guest: a beat
update duetime.worker set beat = beat + 1, beat_at = coalesce($1::bigint, duetime.clock()) where id = $2::text and guest_lease is not null returning id

-- holdings: attempts that a worker holds, of these tasks (null: all), with their tasks
select t.id::text, l.handler, t.payload, coalesce(a.attempt, c.attempts[1]), c.number, get_bit(c.cancel, a.place::integer - 1) = 1, c.claimed_at,
    coalesce(a.tries, c.tries[1]), coalesce(a.crashes, c.crashes[1]),
    a.due_at, t.due_at, t.submitted_at, t.submitted_by, t.expires_at, t.timeout, t.retry, t.meta, t.key, nullif(l.collection, ''), l.priority,
    t.schedule, t.planned_at
from duetime.claim as c
cross join lateral unnest(c.tasks, c.lanes, c.dues, c.attempts, c.tries, c.crashes) with ordinality
    as a (id, lane, due_at, attempt, tries, crashes, place)
cross join lateral (select x.* from duetime.task as x where x.id = a.id offset 0) as t
join duetime.lane as l on l.id = coalesce(a.lane, c.lanes[1])
where c.worker = $1::text and ($2::uuid[] is null or a.id = any ($2::uuid[])) and get_bit(c.done, a.place::integer - 1) = 0
order by c.number, l.priority desc, a.due_at, a.place
