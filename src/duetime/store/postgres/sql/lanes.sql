-- all_lanes: every lane, beside the version of them all. A floor beyond the present was proved before the clock was set back, so it
-- proves nothing: what was added since lies below it.
select l.id, l.handler, l.collection, l.priority, case when l.floor <= duetime.clock() then l.floor else 0 end, c.lanes_version
from duetime.control as c left join duetime.lane as l on true

-- add_lanes: lanes that nothing waits in yet, told to all who remember lanes
with added as (
    insert into duetime.lane (handler, collection, priority)
    select * from unnest($1::text[], $2::text[], $3::smallint[]) on conflict do nothing returning 1
)
update duetime.control set lanes_version = lanes_version + 1 where exists (select from added)

-- publish_floors: how far lanes are empty, for those who start later; a floor beyond the present is from before the clock was set back
update duetime.lane as l set floor = f.floor from unnest($2::integer[], $3::bigint[]) as f (id, floor)
where l.id = f.id and (l.floor < f.floor - 1000000 or l.floor > coalesce($1::bigint, duetime.clock()))
