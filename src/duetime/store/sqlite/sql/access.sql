-- token_state: which version of a token is stored, with which secret
select version, digest from duetime_token where id = ?

-- token_of_name: another token that has a name
select id, expires_at from duetime_token where name = ? and id <> ?

-- put_token: write a token whose version was checked; its last use stays
insert into duetime_token (id, name, version, scopes, handlers, digest, old_digest, old_until_at, rate, note,
    created_at, created_by, rotated_at, expires_at, owner, addresses)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do update set name = excluded.name, version = excluded.version, scopes = excluded.scopes,
    handlers = excluded.handlers, digest = excluded.digest, old_digest = excluded.old_digest,
    old_until_at = excluded.old_until_at, rate = excluded.rate, note = excluded.note, created_at = excluded.created_at,
    created_by = excluded.created_by, rotated_at = excluded.rotated_at, expires_at = excluded.expires_at,
    owner = excluded.owner, addresses = excluded.addresses

-- all_tokens: every token
select id, name, version, scopes, handlers, digest, old_digest, old_until_at, rate, note, created_at, created_by,
    rotated_at, expires_at, owner, addresses, last_used_at from duetime_token order by name

-- tokens_by_id: tokens by id
select id, name, version, scopes, handlers, digest, old_digest, old_until_at, rate, note, created_at, created_by,
    rotated_at, expires_at, owner, addresses, last_used_at from duetime_token
where id in (select value from json_each(?))

-- delete_token: a token that is good no more
delete from duetime_token where id = ?

-- note_token_use: when a token was last used
update duetime_token set last_used_at = max(coalesce(last_used_at, :at), :at) where id = :id

-- put_session: somebody signed in; a repeat changes nothing
insert into duetime_session (digest, token, token_digest, origin, created_at, idle_at, expires_at)
values (?, ?, ?, ?, ?, ?, ?) on conflict (digest) do nothing

-- delete_old_sessions: sessions that are over
delete from duetime_session where expires_at <= :now or idle_at <= :now

-- sessions_by_digest: sessions by digest
select digest, token, token_digest, origin, created_at, idle_at, expires_at from duetime_session
where digest in (select value from json_each(?))

-- renew_session: somebody who is signed in is still there
update duetime_session set idle_at = max(idle_at, :idle_at) where digest = :digest

-- delete_session: somebody signed out
delete from duetime_session where digest = ?

-- insert_audit: keep what an operator did
insert into duetime_audit (id, at, by, token, action, subject, origin, outcome, detail)
    values (?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (id) do nothing

-- audit_head: what is told of an entry
select id, at, by, token, action, subject, origin, outcome, detail from duetime_audit

-- audit_by: of somebody
by = :by

-- audit_action: of one kind
action = :action

-- audit_subject: on one thing
subject = :subject

-- audit_after: from an instant on
at >= :after

-- audit_before: up to an instant
at < :before

-- audit_beyond: behind the page before
(at, id) < (:cursor_at, :cursor_id)

-- audit_order: a page of entries, the latest first
order by at desc, id desc limit :limit

-- delete_audit: the oldest entries
delete from duetime_audit where id in (select id from duetime_audit where at < ? order by at, id limit ?)
