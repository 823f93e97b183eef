-- allot: permits for a worker
select * from duetime.allot($1::bigint, $2::text, $3::bigint, $4::text[], $5::integer[], $6::text[], $7::integer[],
    $8::integer[], $9::bigint[], $10::integer[], $11::integer[], $12::bigint[], $13::text)

-- limits_of_handlers: limits by permits that any of these handlers has
select f.name from duetime.fleet_limit as f
where f.uses ?| $1::text[] and f.by is null and f.rates = '[]' and f.over = 'wait'

-- left_of_limits: how much is left of limits, until the transaction ends
select name, uses, free from duetime.left_of_limits($1::bigint, $2::text[])

-- put_limit: what an operator has set; of rates that change nothing is spent
with anew as (
    delete from duetime.spent as s using duetime.fleet_limit as f
    where s.name = $1::text and f.name = s.name and f.own_rates is distinct from $8::text
)
update duetime.fleet_limit as f set own = $2::integer, until_at = $3::bigint, note = $4::text, set_by = $5::text,
    set_at = case when $7::boolean then coalesce($6::bigint, duetime.clock()) end, own_rates = $8::text,
    version = f.version + 1
where f.name = $1::text returning f.version

-- all_limits: every limit
select f.name, f.declared, f.uses::text, f.version, f.own, f.until_at, f.note, f.set_by, f.set_at,
    duetime.accepted_of(f.uses), f.by, f.rates, f.over, f.own_rates
from duetime.fleet_limit as f order by f.name collate "C"

-- all_permits: what every worker has
select p.name, p.worker, p.permits, p.wanted, p.seen from duetime.permit as p order by p.name, p.worker

-- counted_usages: what the store counts, and what attempts take of it
select f.name, f.by, f.uses::text from duetime.fleet_limit as f
where f.by is not null or f.rates <> '[]' or f.over <> 'wait' order by f.name

-- declare_counted: limits that the store counts, as code declares them
select duetime.declare_counted($1::bigint, $2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::text[],
    $8::text[])

-- count_partitions: what is known of partitions
select limits, partitions, taken, now_at
from duetime.count_partitions($1::bigint, $2::text::text[], $3::text::text[], $4::integer, $5::text::uuid[])

-- write_admission: what a claim was admitted
select duetime.write_admission($1::bigint, $2::text, $3::bigint, $4::text::uuid[], $5::text::text[],
    $6::text::text[], $7::text::integer[], $8::text::integer[], $9::uuid[], $10::text[], $11::uuid[], $12::text[],
    $13::text[], $14::integer[], $15::uuid[], $16::text[], $17::text[], $18::text::text[], $19::text::text[],
    $20::text::integer[], $21::text::bigint[], $22::text::bigint[])

-- go_on: let parked tasks go on
select duetime.go_on($1::bigint, $2::uuid[], $3::text[], $4::text[], $5::integer[], $6::bigint[])

-- write_spent: what is spent of rates
select duetime.write_spent($1::text::text[], $2::text::text[], $3::text::integer[], $4::text::bigint[],
    $5::text::bigint[])

-- leave_admitted: free what ended attempts took
select name, part from duetime.leave($1::text::uuid[], $2::text::integer[], $3::text[])

-- forget_vain_admitted: free what attempts took that are not open any more
select duetime.forget_vain($1::bigint, $2::integer)

-- parked_spots: partitions in which tasks wait
select distinct h.limit_name, h.part from duetime.held as h where h.reason = 'limit' limit $1::integer

-- forget_spent: rates whose burst is whole again for so long, and days that are over
delete from duetime.spent as s where s.at < coalesce($1::bigint, duetime.clock()) - $2::bigint
    and (s.used = 0 or s.at < coalesce($1::bigint, duetime.clock()) - 172800000000)

-- forget_partitions: numbers of partitions that hold no more
delete from duetime.partition as p where p.until_at <= coalesce($1::bigint, duetime.clock())

-- set_partition: a partition's own number
insert into duetime.partition (name, part, own, until_at, note, set_by, set_at)
select f.name, $2::text, $3::integer, $4::bigint, $5::text, $6::text, coalesce($7::bigint, duetime.clock())
from duetime.fleet_limit as f where f.name = $1::text
on conflict (name, part) do update set own = excluded.own, until_at = excluded.until_at, note = excluded.note,
    set_by = excluded.set_by, set_at = excluded.set_at
returning name

-- reset_partition: the limit's number holds for it again
with gone as (
    delete from duetime.partition as p where p.name = $1::text and p.part = $2::text
)
select f.name from duetime.fleet_limit as f where f.name = $1::text

-- counted_sums: what runs and waits under each limit
select f.name, (select coalesce(sum(a.takes), 0) from duetime.admitted as a where a.name = f.name),
    (select count(*) from duetime.held as h where h.reason = 'limit' and h.limit_name = f.name)
from duetime.fleet_limit as f where f.by is not null or f.rates <> '[]' or f.over <> 'wait'

-- list_partitions: the partitions of a limit, by name, after one of them
select x.part, (select coalesce(sum(a.takes), 0) from duetime.admitted as a where a.name = $1::text
        and a.part = x.part),
    w.n, w.oldest, p.own, p.until_at, p.note, p.set_by,
    array(select a.task::text from duetime.admitted as a where a.name = $1::text and a.part = x.part
        and a.attempt is not null order by a.at limit 5)
from (
    select a.part from duetime.admitted as a where a.name = $1::text
    union select h.part from duetime.held as h where h.reason = 'limit' and h.limit_name = $1::text
    union select o.part from duetime.partition as o where o.name = $1::text
) as x left join duetime.partition as p on p.name = $1::text and p.part = x.part
cross join lateral (select count(*) as n, min(h.due_at) as oldest from duetime.held as h where h.reason = 'limit'
    and h.limit_name = $1::text and h.part = x.part) as w
where ($2::text is null and ($3::text is null or x.part collate "C" > $3::text collate "C")) or x.part = $2::text
order by x.part collate "C" limit $4::integer

-- parked_under: the limit and partition under which a task waits, and how many wait before it
select h.limit_name, h.part, (select count(*) from duetime.held as o where o.reason = 'limit'
    and o.limit_name = h.limit_name and o.part = h.part
    and (-o.priority, o.due_at, o.id) < (-h.priority, h.due_at, h.id))
from duetime.held as h where h.id = $1::uuid and h.reason = 'limit'
