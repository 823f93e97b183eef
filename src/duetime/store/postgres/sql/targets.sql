-- lock_targets: let one change of targets happen at a time
select targets_version from duetime.control for update

-- next_targets_version: count a change of targets
update duetime.control set targets_version = targets_version + 1 returning targets_version

-- all_targets: stored targets; null: of every name
select name, kind, definition, version, changed_at, changed_by, shadowed from duetime.target
where $1::text[] is null or name = any ($1::text[]) order by name

-- put_target: a target in place of an earlier one
insert into duetime.target (name, kind, definition, version, changed_at, changed_by, shadowed, digest)
values ($1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::text, false, $7::text)
on conflict (name) do update set kind = excluded.kind, definition = excluded.definition, version = excluded.version,
    changed_at = excluded.changed_at, changed_by = excluded.changed_by, shadowed = false, digest = excluded.digest

-- delete_target: a target
delete from duetime.target where name = $1::text

-- shadow_targets: workers leave them alone
update duetime.target set shadowed = true where name = any ($1::text[]) and not shadowed returning name

-- forget_declarations: the declarations that came with targets
delete from duetime.handler as h using duetime.target as t
where t.name = any ($1::text[]) and h.name = t.name and h.digest = t.digest

-- target_versions: which targets workers serve, and in which version, beside the version of all
select c.targets_version, t.name, t.version from duetime.control as c left join duetime.target as t on not t.shadowed
