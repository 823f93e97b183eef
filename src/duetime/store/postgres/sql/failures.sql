-- failure_rows: kinds of failures that were seen since an instant, their counts since another one, and what has not
-- been added up yet; of these the latest kinds only. All in one look, because a fold moves them from one to the other.
with named as materialized (
    select x.fingerprint, max(x.at) as at from (
        select g.fingerprint, g.last_at as at from duetime.failure as g
        where g.last_at >= $1::bigint and ($4::text is null or g.fingerprint = $4::text)
            and ($3::text is null or g.handler = any (duetime.names($3::text)))
        union all
        select t.fingerprint, t.at from duetime.failure_tally as t
        where t.at >= $1::bigint and ($4::text is null or t.fingerprint = $4::text)
            and ($3::text is null or t.handler = any (duetime.names($3::text)))
    ) as x group by x.fingerprint order by 2 desc, 1 limit $5::integer
)
select 'group', g.fingerprint, g.last_at, 0::bigint, 0::bigint, '', g.facts, g.muted_until_at, g.muted_by
from duetime.failure as g join named as n on n.fingerprint = g.fingerprint
union all
select 'tally', t.fingerprint, t.at, t.attempts, t.tasks, t.sample::text, t.kind, null, ''
from duetime.failure_tally as t join named as n on n.fingerprint = t.fingerprint
union all
select 'count', c.fingerprint, c.at, c.attempts, c.tasks, '', '', null, ''
from named as n join duetime.failure_count as c on c.fingerprint = n.fingerprint where c.at >= $2::bigint

-- any_tally: whether there is something to add up
select 1 from duetime.failure_tally limit 1

-- lock_groups: keep others from adding up and from muting; those who settle and read go on
lock table duetime.failure in share row exclusive mode

-- take_tallies: the first counts that have not been added up
delete from duetime.failure_tally as t where t.ctid = any (array(select x.ctid from duetime.failure_tally as x
    limit $1::integer))
returning t.fingerprint, t.at, t.attempts, t.tasks, t.sample::text, t.kind

-- group_facts: what is known of some kinds
select fingerprint, facts from duetime.failure where fingerprint = any ($1::text[])

-- put_groups: what is known of some kinds now
insert into duetime.failure as g (fingerprint, handler, last_at, facts)
select * from unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
on conflict (fingerprint) do update set handler = excluded.handler, last_at = excluded.last_at, facts = excluded.facts

-- add_counts: more failures of kinds in spans of time
insert into duetime.failure_count as c (fingerprint, at, attempts, tasks)
select * from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
on conflict (fingerprint, at) do update set attempts = c.attempts + excluded.attempts,
    tasks = c.tasks + excluded.tasks

-- mute_group: mark a kind as known until an instant, or not
update duetime.failure set muted_until_at = $2::bigint, muted_by = $3::text where fingerprint = $1::text
returning fingerprint

-- coarsen_counts: add what is counted in narrow spans to the wide ones that they lie in
with fine as (
    delete from duetime.failure_count where at < $1::bigint and at % $2::bigint <> 0
    returning fingerprint, at, attempts, tasks
)
insert into duetime.failure_count as c (fingerprint, at, attempts, tasks)
select f.fingerprint, f.at - f.at % $2::bigint, sum(f.attempts)::bigint, sum(f.tasks)::bigint from fine as f
    group by 1, 2
on conflict (fingerprint, at) do update set attempts = c.attempts + excluded.attempts,
    tasks = c.tasks + excluded.tasks

-- delete_counts: counts after their time
delete from duetime.failure_count where at < $1::bigint

-- delete_groups: kinds that were not seen for long, and the oldest of too many, with their counts
with gone as (
    delete from duetime.failure as g where (g.last_at < $1::bigint and coalesce(g.muted_until_at, 0) <= $2::bigint)
        or g.fingerprint in (select x.fingerprint from duetime.failure as x
            order by x.last_at desc, x.fingerprint offset $3::integer)
    returning g.fingerprint
), counts as (
    delete from duetime.failure_count as c using gone as g where c.fingerprint = g.fingerprint
)
select g.fingerprint from gone as g
