-- Make changes that were decided outside, if everything that they depend on is still as it was seen: all or none.
-- KEYS: after the fixed ones what the changes name. ARGV: now; how many expectations; each: number of a key, field, value ('' for none);
-- then the changes: how many words, the command, the number of a key, the arguments. FINISH: id, facts, letter, instant.
-- Returns 0 if something is not as it was seen, 2 if tasks wait for no other one any more, otherwise 1.
local at = 3
for _ = 1, tonumber(ARGV[2]) do
    local value = redis.call('HGET', KEYS[tonumber(ARGV[at])], ARGV[at + 1]) or ''
    if value ~= ARGV[at + 2] then return 0 end
    at = at + 3
end
write_without_memory()
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    local name, key = ARGV[at + 1], tonumber(ARGV[at + 2])
    if name == 'FINISH' then
        finish(ARGV[at + 3], cmsgpack.unpack(ARGV[at + 4]), ARGV[at + 5], tonumber(ARGV[at + 6]))
    else
        redis.call(name, KEYS[key], unpack(ARGV, at + 3, at + words))
    end
    at = at + words + 1
end
return freed > 0 and 2 or 1
