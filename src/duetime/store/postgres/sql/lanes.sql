-- all_lanes: every lane, beside the version of them all and how often the clock was set back, which is part of it
select l.id, l.handler, l.collection, l.priority, case when l.set_backs = s.last_value then l.floor else 0 end,
    c.lanes_version + s.last_value, s.last_value
from duetime.control as c cross join duetime.set_backs as s left join duetime.lane as l on true

-- add_lanes: lanes that nothing waits in yet, told to all who remember lanes
with added as (
    insert into duetime.lane (handler, collection, priority)
    select * from unnest($1::text[], $2::text[], $3::smallint[]) on conflict do nothing returning 1
)
update duetime.control set lanes_version = lanes_version + 1 where exists (select from added)

-- restore_lanes: lanes under the numbers that they had, told to all who remember lanes
with added as (
    insert into duetime.lane (id, handler, collection, priority)
    select * from unnest($1::integer[], $2::text[], $3::text[], $4::smallint[]) on conflict do nothing returning 1
)
update duetime.control set lanes_version = lanes_version + 1 where exists (select from added)

-- publish_floors: how far lanes are empty, for those who start later
update duetime.lane as l set floor = f.floor, set_backs = $1::bigint from unnest($2::integer[], $3::bigint[]) as f (id,
    floor)
where l.id = f.id and (l.floor < f.floor - 1000000 and l.set_backs = $1::bigint or l.set_backs < $1::bigint)
