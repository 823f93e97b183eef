-- lock_tokens: let writes of tokens take turns, so that what is looked at before stays true; reading goes on
lock table duetime.token in share row exclusive mode

-- token_state: which version of a token is stored, with which secret
select version, digest from duetime.token where id = $1::text

-- token_of_name: another token that has a name, and whether it has expired
select id, coalesce(expires_at <= coalesce($3::bigint, duetime.clock()), false)
from duetime.token where name = $1::text and id <> $2::text

-- put_token: write a token whose version was checked; its last use stays
insert into duetime.token (id, name, version, scopes, handlers, digest, old_digest, old_until_at, rate, note,
    created_at, created_by, rotated_at, expires_at, owner, addresses)
values ($1::text, $2::text, $3::bigint, $4::text, $5::text, $6::text, $7::text, $8::bigint, $9::double precision,
    $10::text, $11::bigint, $12::text, $13::bigint, $14::bigint, $15::text, $16::text)
on conflict (id) do update set name = excluded.name, version = excluded.version, scopes = excluded.scopes,
    handlers = excluded.handlers, digest = excluded.digest, old_digest = excluded.old_digest,
    old_until_at = excluded.old_until_at, rate = excluded.rate, note = excluded.note, created_at = excluded.created_at,
    created_by = excluded.created_by, rotated_at = excluded.rotated_at, expires_at = excluded.expires_at,
    owner = excluded.owner, addresses = excluded.addresses

-- all_tokens: every token
select id, name, version, scopes, handlers, digest, old_digest, old_until_at, rate, note, created_at, created_by,
    rotated_at, expires_at, owner, addresses, last_used_at from duetime.token order by name

-- tokens_by_id: tokens by id
select id, name, version, scopes, handlers, digest, old_digest, old_until_at, rate, note, created_at, created_by,
    rotated_at, expires_at, owner, addresses, last_used_at from duetime.token where id = any ($1::text[])

-- delete_token: a token that is good no more
delete from duetime.token where id = $1::text returning id

-- note_token_uses: when tokens were last used; locked in the order of their ids, because every server notes the same
-- ones
update duetime.token as t set last_used_at = u.at
from (
    select k.id, v.at from duetime.token as k join unnest($1::text[], $2::bigint[]) as v (id, at) on v.id = k.id
    where k.last_used_at is null or k.last_used_at < v.at order by k.id for update of k
) as u where t.id = u.id

-- put_session: somebody signed in; a repeat changes nothing
insert into duetime.session (digest, token, token_digest, origin, created_at, idle_at, expires_at)
values ($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::bigint, $7::bigint) on conflict (digest) do nothing

-- delete_old_sessions: sessions that are over; those that another server removes at this moment are left to it
delete from duetime.session where digest in (
    select digest from duetime.session where expires_at <= $1::bigint or idle_at <= $1::bigint for update skip locked
)

-- sessions_by_digest: sessions by digest
select digest, token, token_digest, origin, created_at, idle_at, expires_at from duetime.session
where digest = any ($1::text[])

-- renew_session: somebody who is signed in is still there
update duetime.session set idle_at = greatest(idle_at, $2::bigint) where digest = $1::text

-- delete_session: somebody signed out
delete from duetime.session where digest = $1::text returning digest

-- insert_audit: keep what operators did
insert into duetime.audit (id, at, by, token, action, subject, origin, outcome, detail)
select * from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
    $9::text[])
on conflict (id) do nothing

-- audit_head: what is told of an entry
select id, at, by, token, action, subject, origin, outcome, detail from duetime.audit

-- audit_by: of somebody
by = $value::text

-- audit_action: of one kind
action = $value::text

-- audit_subject: on one thing
subject = $value::text

-- audit_after: from an instant on
at >= $value::bigint

-- audit_before: up to an instant
at < $value::bigint

-- audit_beyond: behind the page before
(at, id) < ($instant::bigint, $value::text)

-- audit_order: a page of entries, the latest first
order by at desc, id desc limit $1::bigint

-- delete_audit: the oldest entries
with gone as (
    delete from duetime.audit where id in (select id from duetime.audit where at < $1::bigint order by at, id
        limit $2::bigint) returning id
)
select count(*) from gone
