-- all_lanes: every lane, beside the version of them all and how often the clock was set back, which is part of it
select l.id, l.handler, l.collection, l.priority, case when l.set_backs = s.last_value then l.floor else 0 end,
    case when r.set_backs = s.last_value then r.floor else 0 end, c.lanes_version + s.last_value, s.last_value
from duetime.control as c cross join duetime.set_backs as s left join duetime.lane as l on true
left join duetime.road as r on r.id = l.id >> 15 and l.id < 0

-- add_lanes: lanes that nothing waits in yet, told to all who remember lanes
select duetime.make_lanes($1::text[], $2::text[], $3::smallint[])

-- restore_lanes: lanes under the numbers that they had, told to all who remember lanes
with locked as materialized (
    select c.lanes_version from duetime.control as c for update
), added as (
    insert into duetime.lane (id, handler, collection, priority)
    select u.* from locked cross join unnest($1::integer[], $2::text[], $3::text[], $4::smallint[]) as u
        on conflict do nothing returning 1
)
update duetime.control set lanes_version = lanes_version + 1 where exists (select from added)

-- publish_floors: how far lanes are empty, for those who start later
update duetime.lane as l set floor = f.floor, set_backs = $1::bigint from unnest($2::integer[], $3::bigint[]) as f (id,
    floor)
where l.id = f.id and (l.floor < f.floor - 1000000 and l.set_backs = $1::bigint or l.set_backs < $1::bigint)

-- publish_roads: the same of roads
insert into duetime.road as r (id, floor, set_backs)
select f.id, f.floor, $1::bigint from unnest($2::integer[], $3::bigint[]) as f (id, floor)
on conflict (id) do update set floor = excluded.floor, set_backs = excluded.set_backs
where r.floor < excluded.floor - 1000000 and r.set_backs = $1::bigint or r.set_backs < $1::bigint
