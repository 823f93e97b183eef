-- allot: permits for a worker
select * from duetime.allot($1::bigint, $2::text, $3::bigint, $4::text[], $5::integer[], $6::text[], $7::integer[],
    $8::integer[], $9::bigint[], $10::integer[], $11::integer[], $12::text)

-- limits_of_handlers: limits that any of these handlers has
select f.name from duetime.fleet_limit as f where f.uses ?| $1::text[]

-- left_of_limits: how much is left of limits, until the transaction ends
select name, uses, free from duetime.left_of_limits($1::bigint, $2::text[])

-- put_limit: what an operator has set
update duetime.fleet_limit as f set own = $2::integer, until_at = $3::bigint, note = $4::text, set_by = $5::text,
    set_at = case when $2::integer is not null then coalesce($6::bigint, duetime.clock()) end, version = f.version + 1
where f.name = $1::text returning f.version

-- all_limits: every limit
select f.name, f.declared, f.uses::text, f.version, f.own, f.until_at, f.note, f.set_by, f.set_at,
    duetime.accepted_of(f.uses)
from duetime.fleet_limit as f order by f.name collate "C"

-- all_permits: what every worker has
select p.name, p.worker, p.permits, p.wanted, p.seen from duetime.permit as p order by p.name, p.worker
