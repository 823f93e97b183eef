-- insert_request: unless the caller has used the key before
insert into duetime_request (caller, key, digest, task, at) values (?, ?, ?, ?, ?) on conflict do nothing

-- request_by_key: what is stored under a key
select digest, task, met from duetime_request where caller = ? and key = ?

-- move_request: to the task that it was answered with
update duetime_request set task = ?, met = 1 where caller = ? and key = ?

-- delete_request: one that was refused
delete from duetime_request where caller = ? and key = ?

-- delete_requests: the oldest ones
delete from duetime_request where (caller, key) in (select caller, key from duetime_request where at < ? order by at
    limit ?)
