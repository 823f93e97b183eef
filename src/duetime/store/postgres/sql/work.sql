-- claim: tasks for a worker
select * from duetime.claim($1::bigint, $2::text, $3::bigint, $4::integer[], $5::bigint[], $6::bigint[], $7::integer[],
    $8::integer, $9::integer[], $10::bigint[], $11::bigint, $12::bigint, $13::text, $14::bigint)

-- peek: the first positions of several lanes that are due or will be soon
select lane, positions from duetime.peek($1::bigint, $2::integer[], $3::bigint[], $4::integer, $5::bigint)

-- peek_each: the first positions of lanes, of each so many; and of other lanes of roads in which something has
-- become due since, but of the newest of it only, if that is much
select lane, positions from duetime.peek_each($1::bigint, $2::integer[], $3::bigint[], $4::integer[], $5::integer[],
    $6::bigint, $7::bigint)

-- due_lanes: those of these lanes in which something is due
select lane from duetime.due_lanes($1::bigint, $2::integer[], $3::bigint[], $4::bigint)

-- settle: how attempts ended
select accepted, finals, earliest from duetime.settle($1::bigint, $2::text, $3::bigint[], $4::text::uuid[],
    $5::text::integer[], $6::text::bigint[], $7::text::bigint[], $8::text::text[], $9::text::text[],
    $10::text::integer[], $11::text::integer[], $12::text::bigint[], $13::text::text[], $14::text::text[],
    $15::text::text[], $16::text::text[], $17::text::text[], $18::text::text[])

-- settle_slices: that all neighbouring attempts of claims succeeded, with nothing to say
select duetime.settle_slices($1::bigint, $2::text, $3::bigint[], $4::integer[], $5::integer[], $6::text::bigint[],
    $7::text::bigint[])

-- settled_before: which of these attempts of this worker have ended already; what a reaper wrote for one is another's
-- word
select s.id::text, s.attempt from unnest($2::uuid[], $3::integer[], $4::text[]) as s (id, attempt, outcome)
where exists (
    select from duetime.history as h where h.id = s.id and h.attempt = s.attempt and h.worker = $1::text
    and (h.outcome = s.outcome or h.outcome not in ('lost', 'released'))
) or exists (
    select from duetime.attempt as a where a.task = s.id and a.attempt = s.attempt and a.worker = $1::text
    and (a.outcome = s.outcome or a.outcome not in ('lost', 'released'))
)

-- open_attempts: everything needed to end a worker's attempts, whose claims are locked
with locked as (
    select * from duetime.claim where worker = $1::text order by number for update
)
select a.id::text, coalesce(a.attempt, c.attempts[1]), coalesce(a.tries, c.tries[1]), coalesce(a.crashes, c.crashes[1]),
    greatest(c.claimed_at, a.due_at), coalesce(t.due_at, a.due_at), t.expires_at, l.handler
from locked as c
cross join lateral unnest(c.tasks, c.lanes, c.dues, c.attempts, c.tries, c.crashes, c.payloads) with ordinality
    as a (id, lane, due_at, attempt, tries, crashes, payload, index)
left join lateral (select x.* from duetime.task as x where x.id = a.id offset 0) as t on true
join duetime.lane as l on l.id = coalesce(a.lane, c.lanes[1])
where get_bit(c.done, a.index::integer - 1) = 0 and (t.id is not null or a.payload is not null)

-- insert_worker: a worker that is about to claim; one that registers again begins anew. Its beats do not begin at 1, or
-- one that was reaped and registers again could show the very beat at which somebody has seen it dead.
insert into duetime.worker (id, host, pid, slots, started_at, lease, beat, beat_at, seen_gates, declared, concurrency,
    draining, version, python)
values ($2::text, $3::text, $4::integer, $5::text, coalesce($1::bigint, duetime.clock()), $6::double precision,
    (random() * 1000000000)::bigint, coalesce($1::bigint, duetime.clock()), -1, $7::text,
    $8::integer, $9::boolean, $10::text, $11::text)
on conflict (id) do update set beat = duetime.worker.beat + 1, seen_gates = -1, slots = excluded.slots,
    lease = excluded.lease, declared = excluded.declared, concurrency = excluded.concurrency

-- lock_worker: a worker, if it is still at this beat (null: at any)
select id from duetime.worker where id = $1::text and ($2::bigint is null or beat = $2::bigint) for update

-- mark_lost: a worker that is about to be forgotten because it died
update duetime.worker set lost_at = $2::bigint where id = $1::text

-- delete_worker: forget a worker, with claims that have nothing open
with gone as (delete from duetime.claim where worker = $1::text and open = 0)
delete from duetime.worker where id = $1::text

-- drain_worker: let a worker claim nothing, or again. It is locked as no update alone does, so that a claim that goes
-- on is waited for.
with locked as (select w.id from duetime.worker as w where w.id = $1::text for update)
update duetime.worker as w set draining = $2::boolean from locked as l where w.id = l.id returning w.id

-- note_lag: how late the event loop of a worker answers
update duetime.worker set lag = $2::double precision where id = $1::text

-- renew: a beat, the versions of gates and targets, and whether it drains
update duetime.worker as w set beat = w.beat + 1, beat_at = coalesce($1::bigint, duetime.clock())
    from duetime.control as c
where w.id = $2::text returning c.gates_version, c.targets_version, w.draining

-- change_slots: what a worker runs now
update duetime.worker set slots = $2::text, declared = $3::text, concurrency = $4::integer
where id = $1::text returning id

-- progress: how far attempts are that the worker holds
insert into duetime.progress (id, attempt, fraction, text)
select p.id, p.attempt, p.fraction, p.text
from unnest($2::uuid[], $3::integer[], $4::double precision[], $5::text[]) as p (id, attempt, fraction, text)
where exists (
    select from duetime.claim as c where c.worker = $1::text and p.id = any (c.tasks)
    and coalesce(c.attempts[array_position(c.tasks, p.id)], c.attempts[1]) = p.attempt
        and get_bit(c.done, array_position(c.tasks, p.id) - 1) = 0
)
on conflict (id) do update set attempt = excluded.attempt, fraction = excluded.fraction, text = excluded.text
