-- accept: attempts that somebody else works on now
select duetime.accept($1::bigint, $2::text, $3::uuid[], $4::integer[], $5::bigint[], $6::bigint[], $7::text[],
    $8::bigint)

-- accepted_from: which of these attempts this worker has handed over
select a.id::text, a.attempt from unnest($2::uuid[], $3::integer[]) as s (id, attempt)
join duetime.accepted as a on a.id = s.id and a.attempt = s.attempt where a.sender = $1::text

-- give_back: accepted attempts, for their senders again
select g.id::text, g.attempt, g.worker, g.number
from duetime.give_back($1::bigint, $2::uuid[], $3::integer[], $4::boolean) as g

-- claims_of_attempts: which workers have these tasks, and in which claims
select r.id::text, r.attempt, r.worker, r.number from duetime.running($1::uuid[]) as r where r.worker <> ''

-- settled_by_report: which of these attempts have ended as a report says it
select s.id::text, s.attempt from unnest($1::uuid[], $2::integer[]) as s (id, attempt)
where exists (
    select from duetime.history as h where h.id = s.id and h.attempt = s.attempt
    and h.outcome in ('succeeded', 'failed', 'fatal', 'retry_later', 'cancelled')
) or exists (
    select from duetime.attempt as a where a.task = s.id and a.attempt = s.attempt
    and a.outcome in ('succeeded', 'failed', 'fatal', 'retry_later', 'cancelled')
)

-- hear_accepted: reports of accepted attempts, which begin their silence anew
with said as materialized (
    select s.id, s.attempt, s.extend, s.fraction, s.text, coalesce($1::bigint, duetime.clock()) as now_at
    from unnest($2::uuid[], $3::integer[], $4::bigint[], $5::double precision[], $6::text[])
        as s (id, attempt, extend, fraction, text)
), heard as (
    update duetime.accepted as a set report_at = least(a.deadline_at,
        coalesce(s.now_at + coalesce(s.extend, a.silence), a.deadline_at))
    from said as s where a.id = s.id and a.attempt = s.attempt and a.id = any ($2::uuid[])
    returning a.id, a.attempt, a.number, a.report_at
), marked as (
    insert into duetime.progress (id, attempt, fraction, text)
    select h.id, h.attempt, s.fraction, s.text from heard as h join said as s on s.id = h.id
    where s.fraction is not null
    on conflict (id) do update set attempt = excluded.attempt, fraction = excluded.fraction, text = excluded.text
)
select h.id::text, h.attempt, h.report_at, coalesce((select get_bit(c.cancel, 0) = 1 from duetime.claim as c
    where c.worker = '' and c.number = h.number), false)
from heard as h

-- take_withdrawals: accepted attempts of these handlers whose servers somebody tells now that they stop
with chosen as materialized (
    select a.id, a.location from duetime.accepted as a join duetime.claim as c on c.worker = '' and c.number = a.number
    join duetime.lane as l on l.id = c.lanes[1] where a.withdrawing and l.handler = any ($1::text[])
    limit $2::integer for update of a skip locked
)
update duetime.accepted as a set location = null, withdrawing = false from chosen as c where a.id = c.id
returning a.id::text, a.attempt, c.location

-- overdue_ids: accepted attempts that have timed out
select a.id::text from duetime.accepted as a where a.report_at <= coalesce($1::bigint, duetime.clock())
order by a.report_at limit $2::integer

-- open_by_id: these tasks, if they run, with who has them and when an accepted one times out
select r.id::text, l.handler, '', r.attempt, r.tries,
    r.crashes, r.due_at, coalesce(t.due_at, r.due_at), coalesce(t.submitted_at, r.submitted_at),
    coalesce(t.submitted_by, r.submitted_by),
    t.expires_at, t.timeout, t.retry, t.extras, t.key, nullif(l.collection, ''), l.priority, t.schedule, t.planned_at,
    (select c.epoch from duetime.control as c), r.number, r.cancelling, r.claimed_at, nullif(r.worker, ''), a.report_at
from duetime.running($1::uuid[]) as r join duetime.lane as l on l.id = r.lane
left join lateral (select x.* from duetime.task as x where x.id = r.id offset 0) as t on true
left join lateral (select x.* from duetime.accepted as x where r.worker = '' and x.id = r.id offset 0) as a on true
where t.id is not null or r.payload is not null
