-- Let workers see a version of gates or targets that control has; an older one changes nothing.
-- KEYS: the fixed ones. ARGV: now, field, version, field of the content or '', content.
if tonumber(redis.call('HGET', META, ARGV[2]) or -1) < tonumber(ARGV[3]) then
    write_without_memory()
    redis.call('HSET', META, ARGV[2], ARGV[3])
    if ARGV[4] ~= '' then redis.call('HSET', META, ARGV[4], ARGV[5]) end
end
return 1
