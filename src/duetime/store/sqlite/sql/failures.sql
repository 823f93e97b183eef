-- insert_tally: failures of one kind that were written together
insert into duetime_failure_tally (fingerprint, handler, at, attempts, tasks, sample, kind) values (?, ?, ?, ?, ?, ?, ?)

-- failure_rows: kinds of failures that were seen since an instant, their counts since another one, and what has not
-- been added up yet; of these the latest kinds only
with named as materialized (
    select x.fingerprint, max(x.at) as at from (
        select g.fingerprint, g.last_at as at from duetime_failure as g
        where g.last_at >= :seen_since and (:fingerprint is null or g.fingerprint = :fingerprint)
            and (:names is null or g.handler in (select value from json_each(:names)))
        union all
        select t.fingerprint, t.at from duetime_failure_tally as t
        where t.at >= :seen_since and (:fingerprint is null or t.fingerprint = :fingerprint)
            and (:names is null or t.handler in (select value from json_each(:names)))
    ) as x group by x.fingerprint order by 2 desc, 1 limit :limit
)
select 'group', g.fingerprint, g.last_at, 0, 0, '', g.facts, g.muted_until_at, g.muted_by
from duetime_failure as g where g.fingerprint in (select fingerprint from named)
union all
select 'tally', t.fingerprint, t.at, t.attempts, t.tasks, t.sample, t.kind, null, ''
from duetime_failure_tally as t where t.fingerprint in (select fingerprint from named)
union all
select 'count', c.fingerprint, c.at, c.attempts, c.tasks, '', '', null, ''
from named as n cross join duetime_failure_count as c on c.fingerprint = n.fingerprint where c.at >= :since

-- any_tally: whether there is something to add up
select 1 from duetime_failure_tally limit 1

-- some_tallies: the first counts that have not been added up
select number, fingerprint, at, attempts, tasks, sample, kind from duetime_failure_tally order by number limit ?

-- delete_tallies: counts that have been added up
delete from duetime_failure_tally where number <= ?

-- group_facts: what is known of some kinds
select fingerprint, facts from duetime_failure where fingerprint in (select value from json_each(?))

-- put_group: what is known of a kind now
insert into duetime_failure (fingerprint, handler, last_at, facts) values (?, ?, ?, ?)
on conflict (fingerprint) do update set handler = excluded.handler, last_at = excluded.last_at, facts = excluded.facts

-- add_count: more failures of a kind in a span of time
insert into duetime_failure_count (fingerprint, at, attempts, tasks) values (?, ?, ?, ?)
on conflict (fingerprint, at) do update set attempts = attempts + excluded.attempts, tasks = tasks + excluded.tasks

-- mute_group: mark a kind as known until an instant, or not
update duetime_failure set muted_until_at = ?, muted_by = ? where fingerprint = ?

-- coarsen_counts: add what is counted in narrow spans to the wide ones that they lie in
insert into duetime_failure_count (fingerprint, at, attempts, tasks)
select fingerprint, at - at % :width, sum(attempts), sum(tasks) from duetime_failure_count
where at < :before and at % :width <> 0 group by 1, 2
on conflict (fingerprint, at) do update set attempts = attempts + excluded.attempts, tasks = tasks + excluded.tasks

-- delete_fine_counts: the narrow spans that were added
delete from duetime_failure_count where at < :before and at % :width <> 0

-- delete_counts: counts after their time
delete from duetime_failure_count where at < ?

-- delete_groups: kinds that were not seen for long, and the oldest of too many
delete from duetime_failure where (last_at < :before and coalesce(muted_until_at, 0) <= :now)
    or fingerprint in (select fingerprint from duetime_failure order by last_at desc, fingerprint limit -1 offset :most)

-- delete_stray_counts: counts of kinds that are gone
delete from duetime_failure_count where fingerprint not in (select fingerprint from duetime_failure)
