-- insert_operation: an operation that starts; one with the same id stays as it is
insert into duetime.operation (id, state, version, started_at, ended_at, spec, progress, batch)
values ($1::text, $2::text, $3::bigint, coalesce($4::bigint, duetime.clock()), $5::bigint, $6::text, $7::text, $8::text)
on conflict (id) do nothing

-- one_operation: an operation by id
select id, state, version, started_at, ended_at, spec, progress, batch from duetime.operation where id = $1::text

-- lock_operation: the same, so that nobody else acts on its batch until this transaction ends (I22)
select id, state, version, started_at, ended_at, spec, progress, batch from duetime.operation where id = $1::text
for update

-- some_operations: the latest before a position
select id, state, version, started_at, ended_at, spec, progress, batch from duetime.operation
where (started_at, id) < ($1::bigint, $2::text) order by started_at desc, id desc limit $3::integer

-- live_operations: those of them that have not ended
select id, state, version, started_at, ended_at, spec, progress, batch from duetime.operation
where ended_at is null and (started_at, id) < ($1::bigint, $2::text) order by started_at desc, id desc limit $3::integer

-- update_operation: the next version of an operation
update duetime.operation set state = $1::text, version = $2::bigint, ended_at = $3::bigint, spec = $4::text,
    progress = $5::text, batch = $6::text
where id = $7::text and version = $8::bigint returning id

-- prune_operations: those that ended before an instant
with gone as (
    delete from duetime.operation where id in (
        select o.id from duetime.operation as o where o.ended_at < $1::bigint order by o.ended_at limit $2::integer
    ) returning id
)
select count(*) from gone
