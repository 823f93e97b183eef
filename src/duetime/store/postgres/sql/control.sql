-- task_locations: where tasks are that an operator names, and the lane of those that live
with located as materialized (
    select x.id, x.location, x.lane, x.whole from duetime.locate($1::uuid[]) as x
), live as materialized (
    select i.id, case when w.location in ('due', 'held', 'parked') then 'pending' else 'running' end as state,
        coalesce(t.lane, w.lane) as lane
    from unnest($1::uuid[]) as i (id)
    left join lateral (select x.* from duetime.task as x where x.id = i.id offset 0) as t on true
    left join located as w on w.id = i.id
    where t.id is not null or w.whole
)
select v.id::text, v.state, l.id, l.handler, l.collection, l.priority
from live as v join duetime.lane as l on l.id = v.lane
union all
select h.id::text, h.state, h.lane, null, null, null from duetime.history as h
where h.id = any ($1::uuid[]) and h.finished_at >= $2::bigint

-- end_waiting: end those of these tasks that wait, and name them
select unnest(duetime.end_waiting($1::bigint, $2::text, $3::uuid[]))::text

-- lock_claims: the claims that hold these tasks, in the order in which everybody locks them
select c.number from duetime.claim as c
where case when cardinality($1::uuid[]) <= 8 then exists (select from unnest($1::uuid[]) as i (id)
    where i.id = any (c.tasks))
    else exists (select from unnest(c.tasks) as i (id) where (i.id in (select unnest($1::uuid[]))) is true) end
order by c.worker, c.number for update

-- mark_cancelling: tell the workers of running tasks to stop them, and name those
with marked as (
    update duetime.claim as c set cancel = c.cancel | (
        select string_agg(case when i.id in (select unnest($1::uuid[])) then '1' else '0' end, ''
            order by i.index)::varbit
        from unnest(c.tasks) with ordinality as i (id, index))
    where case when cardinality($1::uuid[]) <= 8 then exists (select from unnest($1::uuid[]) as i (id)
        where i.id = any (c.tasks))
        else exists (select from unnest(c.tasks) as i (id) where (i.id in (select unnest($1::uuid[]))) is true) end
    returning c.tasks, c.done
)
select i.id::text from marked as m cross join lateral unnest(m.tasks) with ordinality as i (id, index)
where (i.id in (select unnest($1::uuid[]))) is true and get_bit(m.done, i.index::integer - 1) <> 1

-- hurry_accepted: let accepted attempts that were told to stop time out soon, and their servers be told
update duetime.accepted as a set report_at = least(a.report_at, x.at), deadline_at = least(a.deadline_at, x.at),
    withdrawing = a.location is not null
from (select coalesce($1::bigint, duetime.clock()) + $2::bigint as at) as x where a.id = any ($3::uuid[])

-- lock_finals: finished tasks that may be taken back, so that nobody else takes them
select h.id::text, h.finished_at from duetime.history as h
where h.id = any ($1::uuid[]) and h.finished_at >= $2::bigint and h.state <> 'succeeded' order by h.id for update

-- delete_finals: finished tasks that an operator deletes, with their attempts and output
with chosen as materialized (
    select h.id from duetime.history as h where h.id = any ($1::uuid[]) order by h.id for update
), gone as (
    delete from duetime.history as h where h.id = any (array(select c.id from chosen as c))
    returning h.id, h.lane, h.state
), told as (
    delete from duetime.attempt as a where a.task = any (array(select g.id from gone as g))
), printed as (
    delete from duetime.output_chunk as c where c.task = any (array(select g.id from gone as g))
), kept as (
    delete from duetime.output as o where o.task = any (array(select g.id from gone as g))
), counted as (
    insert into duetime.tally (lane, state, n) select g.lane, g.state, -count(*) from gone as g group by g.lane, g.state
)
select g.id::text from gone as g

-- revive: finished tasks live again, due now, unless a live one holds their key. An expiry in the past would end them
-- before they start.
with change as (
    select w.* from unnest($2::uuid[]) with ordinality as w (id, index)
), chosen as materialized (
    select h.*, w.index from duetime.history as h join change as w on w.id = h.id
    where h.id = any ($2::uuid[]) and h.finished_at >= $3::bigint and h.state <> 'succeeded'
    and (h.key is null or not exists (select from duetime.task as t where t.key = h.key
        and t.handler = any (duetime.names(h.handler))))
), stored as (
    insert into duetime.task (id, lane, handler, key, payload, due_at, submitted_at, submitted_by, expires_at, timeout,
        retry, extras, schedule, planned_at)
    select c.id, c.lane, c.handler, c.key, c.payload, $1::bigint, c.submitted_at, c.submitted_by,
        case when c.expires_at > $1::bigint then c.expires_at end, c.timeout, c.retry, c.extras, c.schedule,
            c.planned_at
    from chosen as c order by c.index
    on conflict do nothing
    returning id, expires_at
), gone as (
    delete from duetime.history as h using stored as s where h.id = s.id and h.finished_at >= $3::bigint
    returning h.id, h.lane, h.state, h.outcome, h.attempt, h.worker, h.started_at, h.finished_at, h.error, h.detail,
        s.expires_at
), placed as (
    insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
    select g.lane, $1::bigint, g.id, $1::bigint, g.expires_at, g.attempt, 0, 0 from gone as g
), told as (
    insert into duetime.attempt (task, attempt, outcome, worker, started_at, finished_at, error, detail)
    select g.id, g.attempt, g.outcome, g.worker, g.started_at, g.finished_at, g.error, g.detail from gone as g
        where g.outcome is not null
), counted as (
    insert into duetime.tally (lane, state, n)
    select g.lane, 'live', count(*) from gone as g group by g.lane
    union all
    select g.lane, g.state, -count(*) from gone as g group by g.lane, g.state
)
select g.id::text from gone as g

-- lock_vain: what children waited for that were cancelled because of these tasks; nobody else takes them back meanwhile
select v.child::text, v.parent::text, v.needs from duetime.vain as v where v.child = any (array(
    select w.child from duetime.vain as w where w.parent = any ($1::uuid[]))) order by v.child, v.parent for update

-- forget_vain: tasks that live again wait for nothing, unless they are told so
delete from duetime.vain where child = any ($1::uuid[])

-- lock_waiting: tasks that wait, kept from moving on until this transaction has ended
select unnest(duetime.lock_waiting($1::uuid[]))::text

-- edit_waiting: give waiting tasks another lane, due time and payload, if they are still in the lane that the new one
-- was chosen for
with change as (
    select * from unnest($2::uuid[], $3::integer[], $4::integer[], $5::bigint[], $6::text[])
        as w (id, former, lane, due_at, payload)
), held as (
    update duetime.held as h set lane = w.lane, due_at = coalesce(w.due_at, h.due_at)
    from change as w where h.id = w.id and h.lane = w.former and h.reason <> 'limit'
    returning h.id, w.former, w.lane, w.due_at, w.payload
), counted_anew as (  -- its partition may be another one now
    delete from duetime.held as h using change as w where h.id = w.id and h.lane = w.former and h.reason = 'limit'
    returning h.id, w.former, w.lane, w.due_at, w.payload, h.due_at as since, h.expires_at, h.attempt, h.tries,
        h.crashes
), back as (
    insert into duetime.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
    select a.lane, greatest(coalesce(a.due_at, a.since), $1::bigint), a.id, coalesce(a.due_at, a.since), a.expires_at,
        a.attempt, a.tries, a.crashes from counted_anew as a
), due as (
    update duetime.due as d set lane = w.lane, due_at = coalesce(w.due_at, d.due_at),
        pos = greatest(coalesce(w.due_at, d.due_at), $1::bigint), size = coalesce(octet_length(w.payload), d.size),
        payload = case when d.payload is not null then coalesce(w.payload, d.payload) end
    from change as w where d.id = w.id and d.lane = w.former returning d.id, w.former, w.lane, w.due_at, w.payload
), edited as (
    select * from held union all select * from due
    union all select a.id, a.former, a.lane, a.due_at, a.payload from counted_anew as a
), told as (
    update duetime.task as t set lane = e.lane, due_at = coalesce(e.due_at, t.due_at),
        payload = coalesce(e.payload, t.payload)
    from edited as e where t.id = e.id
), counted as (
    insert into duetime.tally (lane, state, n)
    select m.lane, 'live', sum(m.n) from edited as e cross join lateral (values (e.former, -1), (e.lane, 1)) as m (lane,
        n)
    where e.former <> e.lane group by m.lane
)
select e.id::text from edited as e

-- edit_finals: give tasks that ended without success another payload
update duetime.history as h set payload = p.payload from unnest($1::uuid[], $2::text[]) as p (id, payload)
where h.id = p.id and h.id = any ($1::uuid[]) and h.finished_at >= $3::bigint and h.state <> 'succeeded'

-- park: let tasks that were just settled wait for other code
select duetime.park($1::uuid[], $2::text[])

-- unpark: let parked tasks go on that have another payload
select duetime.unpark($1::bigint, $2::uuid[])

-- parked_kinds: lanes with parked tasks, and which declarations have refused those; there are few of them, however
-- many tasks are parked
select l.id, l.handler, l.collection, k.refused
from (select distinct h.lane, h.refused from duetime.held as h where h.reason in ('declaration', 'limit')
    and h.reason = 'declaration') as k
join duetime.lane as l on l.id = k.lane order by l.priority desc, l.id

-- parked_of: parked tasks of some kinds that are due, so many of each, earlier submitted first
select h.id::text, l.handler
from unnest($2::integer[], $3::text[], $4::integer[]) with ordinality as k (lane, refused, quota, index)
join duetime.lane as l on l.id = k.lane
cross join lateral (
    select x.id from duetime.held as x where x.reason in ('declaration', 'limit') and x.reason = 'declaration'
        and x.lane = k.lane and x.refused = k.refused
        and x.due_at <= coalesce($1::bigint, duetime.clock())
        and (x.expires_at is null or x.expires_at > coalesce($1::bigint, duetime.clock()))
    order by x.id limit k.quota
) as h order by k.index, h.id

-- parked_in: parked tasks of some lanes that are due, unless somebody else has them in hand
select h.id::text from duetime.held as h where h.reason in ('declaration', 'limit') and h.lane = any ($2::integer[])
    and h.due_at <= $1::bigint
order by h.id limit $3::integer for update skip locked

-- claim_parked: parked tasks for a worker
select p_at, p_any from duetime.claim_parked($1::bigint, $2::text, $3::bigint, $4::uuid[], $5::text)

-- lanes_of_handlers: the lanes that gates may hold
select id, handler, collection from duetime.lane where handler = any ($1::text[])

-- take_due: entries that are due, of some lanes, from their floors on.
-- Tasks that stood there whole get a row of their own.
with taken as (
    delete from duetime.due as d where d.ctid = any (array(
        select x.ctid from unnest($2::integer[]) as u (lane) join duetime.lane_floor as l on l.id = u.lane
        cross join lateral (
            select e.ctid from duetime.due as e
            where e.lane = l.id and e.pos >= l.floor and e.pos <= $1::bigint
            order by e.pos limit $3::integer for update skip locked
        ) as x
        limit $3::integer))
    returning d.*
), written as (
    insert into duetime.task (id, lane, handler, payload, due_at, submitted_at, submitted_by)
    select d.id, d.lane, l.handler, d.payload, d.due_at, d.submitted_at, d.submitted_by
    from taken as d join duetime.lane as l on l.id = d.lane where d.payload is not null
)
select d.id::text, d.attempt, d.tries, d.crashes, d.doubtful from taken as d

-- forget_repeats: of doubtful tasks whose entries were taken, those that were there already
select unnest(duetime.forget_repeats($1::uuid[]))::text

-- end_taken: the ends of tasks whose entries were taken
select duetime.end_tasks($1::bigint, $2::text, null, $3::uuid[], $4::integer[], $5::integer[], $6::integer[])

-- expired_tasks: waiting tasks whose expiry has passed
select t.id::text from duetime.task as t
where t.expires_at <= $1::bigint
and (exists (select from duetime.due as d where d.id = t.id) or exists (select from duetime.held as h
    where h.id = t.id))
order by t.expires_at limit $2::integer

-- lock_expired_held: those that wait for others, unless somebody else has them in hand or gives them more time
select h.id::text from duetime.held as h where h.id = any ($2::uuid[]) and h.expires_at <= $1::bigint order by h.id
    for update skip locked

-- lock_expired_due: the same for those that wait for their time
select d.id::text from duetime.due as d where d.id = any ($2::uuid[]) and d.expires_at <= $1::bigint order by d.id
    for update skip locked

-- lock_gates: let one change of gates happen at a time
select gates_version from duetime.control for update

-- put_gate: set a gate, under the present name of the handler
insert into duetime.gate (handler, collection, action, until_at, note, set_by, set_at, automatic, probe_at, probe_every)
values ((duetime.names($1::text))[1], $2::text, $3::text, $4::bigint, $5::text, $6::text, $7::bigint, $8::boolean,
    $9::bigint, $10::double precision)
on conflict (handler, collection) do update set action = excluded.action, until_at = excluded.until_at,
    note = excluded.note, set_by = excluded.set_by, set_at = excluded.set_at, automatic = excluded.automatic,
    probe_at = excluded.probe_at, probe_every = excluded.probe_every

-- move_probe: the next probe of an automatic gate, unless somebody has moved it already
update duetime.gate set probe_at = $4::bigint where handler = any (duetime.names($1::text)) and collection = $2::text
    and automatic and probe_at = $3::bigint returning handler

-- streak: failures in a row
select failures, since_at, last from duetime.streak where handler = (duetime.names($1::text))[1]
    and collection = $2::text

-- put_streak: note failures in a row
insert into duetime.streak (handler, collection, failures, since_at, last)
values ((duetime.names($1::text))[1], $2::text, $3::bigint, $4::bigint, $5::text)
on conflict (handler, collection) do update set failures = excluded.failures, since_at = excluded.since_at,
    last = excluded.last

-- delete_streak: the row has ended
delete from duetime.streak where handler = any (duetime.names($1::text)) and collection = $2::text

-- delete_ended_gates: gates whose time is over
delete from duetime.gate where until_at <= coalesce($1::bigint, duetime.clock())

-- delete_gate: open a gate, whichever of a handler's names it was set by
delete from duetime.gate where handler = any (duetime.names($1::text)) and collection = $2::text returning handler

-- next_gates_version: count a change of gates
update duetime.control set gates_version = gates_version + 1 returning gates_version

-- all_gates: every gate that is not over, beside the version of them all
select c.gates_version, g.handler, g.collection, g.action, g.until_at, g.note, g.set_by, g.set_at, g.automatic,
    g.probe_at, g.probe_every
from duetime.control as c left join duetime.gate as g on g.until_at is null or g.until_at > coalesce($1::bigint,
    duetime.clock())
order by g.handler, g.collection

-- confirm_gates: a worker starts nothing any more that gates up to a version forbid
update duetime.worker set seen_gates = greatest(seen_gates, $2::bigint) where id = $1::text

-- put_handlers: what a process declared, unless it did before; the names of which something is new
insert into duetime.handler (name, digest, declaration)
select * from unnest($1::text[], $2::text[], $3::text[]) as h (name, digest, declaration) order by 1, 2
on conflict do nothing
returning name

-- all_aliases: all other names of handlers
select alias, name from duetime.alias

-- forget_aliases: other names of a handler
delete from duetime.alias where name = $1::text

-- put_aliases: other names of a handler; what led to one of them leads to the handler now
with moved as (
    update duetime.alias as a set name = $1::text where a.name = any ($2::text[]) and a.alias <> all ($2::text[])
)
insert into duetime.alias (alias, name) select u.alias, $1::text from unnest($2::text[]) as u (alias)
on conflict (alias) do update set name = excluded.name

-- forget_handlers: declarations of these names but the newest two of each, unless a worker holds them
delete from duetime.handler as h where h.name = any ($1::text[])
and (select count(*) from duetime.handler as o where o.name = h.name and o.number > h.number) >= 2
and not exists (select from duetime.worker as w where w.declared::json ->> h.name = h.digest)

-- all_handlers: declarations, those of a name in the order in which they were first made: the last of each, and if
-- asked for those that a worker holds
select h.declaration from duetime.handler as h
where not exists (select from duetime.handler as o where o.name = h.name and o.number > h.number)
or ($1::boolean and exists (select from duetime.worker as w where w.declared::json ->> h.name = h.digest))
order by h.name collate "C", h.number

-- all_fairness: handlers whose collections share its starts
select handler, declared, weights, note, set_by, set_at from duetime.fairness order by handler collate "C"

-- declare_fairness: what code says of handlers; returns those of which it said something else before
insert into duetime.fairness as f (handler, declared)
select h.handler, h.declared from unnest($1::text[], $2::boolean[]) as h (handler, declared)
where h.declared or exists (select from duetime.fairness as o where o.handler = h.handler and o.declared)
on conflict (handler) do update set declared = excluded.declared where f.declared <> excluded.declared
returning handler

-- put_weights: weights that somebody has set, or none
insert into duetime.fairness as f (handler, weights, note, set_by, set_at)
values (coalesce((select a.name from duetime.alias as a where a.alias = $1::text), $1::text), $2::text, $3::text,
    $4::text, case when $2::text <> '{}' then coalesce($5::bigint, duetime.clock()) end)
on conflict (handler) do update set weights = excluded.weights, note = excluded.note, set_by = excluded.set_by,
    set_at = excluded.set_at

-- move_weights: what was set by former names of a handler, unless it has its own
with moved as (
    delete from duetime.fairness as f where f.handler = any ($2::text[]) returning f.*
)
insert into duetime.fairness (handler, weights, note, set_by, set_at)
select $1::text, m.weights, m.note, m.set_by, m.set_at from moved as m on conflict do nothing

-- spend_quotas: take from quotas, or say how long to wait
select wait from duetime.spend_quotas($1::bigint, $2::text[], $3::bigint[], $4::bigint[])

-- ping: a write that changes nothing; a server that only reads refuses it
update duetime.control set gates_version = gates_version where false
