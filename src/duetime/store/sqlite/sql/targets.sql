-- all_targets: stored targets; null: of every name, otherwise of a JSON array of names
select name, kind, definition, version, changed_at, changed_by, shadowed from duetime_target
where :names is null or name in (select value from json_each(:names)) order by name

-- put_target: a target in place of an earlier one
insert or replace into duetime_target (name, kind, definition, version, changed_at, changed_by, shadowed, digest)
values (?, ?, ?, ?, ?, ?, 0, ?)

-- delete_target: a target
delete from duetime_target where name = ?

-- shadow_target: workers leave it alone
update duetime_target set shadowed = 1 where name = ? and not shadowed

-- forget_declaration: the declaration that came with a target
delete from duetime_handler
where name = :name and digest = (select digest from duetime_target where name = :name)

-- target_versions: which targets workers serve, and in which version
select name, version from duetime_target where not shadowed

-- targets_version: how often targets were changed
select value from duetime_fact where name = 'targets_version'

-- next_targets_version: count a change of targets
update duetime_fact set value = value + 1 where name = 'targets_version' returning value
