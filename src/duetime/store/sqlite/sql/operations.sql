-- insert_operation: an operation that starts; one with the same id stays as it is
insert or ignore into duetime_operation (id, state, version, started_at, ended_at, spec, progress, batch)
values (?, ?, ?, ?, ?, ?, ?, ?)

-- one_operation: an operation by id
select id, state, version, started_at, ended_at, spec, progress, batch from duetime_operation where id = ?

-- some_operations: the latest before a position
select id, state, version, started_at, ended_at, spec, progress, batch from duetime_operation
where (started_at, id) < (:started_at, :id) order by started_at desc, id desc limit :limit

-- live_operations: those of them that have not ended
select id, state, version, started_at, ended_at, spec, progress, batch from duetime_operation
where ended_at is null and (started_at, id) < (:started_at, :id) order by started_at desc, id desc limit :limit

-- update_operation: the next version of an operation
update duetime_operation set state = ?, version = ?, ended_at = ?, spec = ?, progress = ?, batch = ?
where id = ? and version = ?

-- prune_operations: those that ended before an instant
delete from duetime_operation where id in (
    select id from duetime_operation where ended_at < ? order by ended_at limit ?
)
