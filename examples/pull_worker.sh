#!/bin/sh
# A worker with curl: pull_worker.sh HANDLER COMMAND…
# COMMAND finds the claimed task as JSON on its standard input and prints its result as JSON, or nothing. Exit code 0 is success, 75
# (EX_TEMPFAIL) asks to be run later, 65 (EX_DATAERR) fails for good, any other one fails. docs/pull-workers.md explains each step.
set -u
handler=$1; shift
server=${DUETIME_SERVER:-http://127.0.0.1:8420}

ask() {  # METHOD PATH BODY; repeated until it is answered, which is harmless everywhere
    curl --silent --show-error --fail --retry 20 --retry-connrefused --retry-delay 1 --request "$1" "$server$2" \
        ${DUETIME_TOKEN:+--header "Authorization: Bearer $DUETIME_TOKEN"} --header 'Content-Type: application/json' --data-binary "$3"
}
worker=$(ask POST /v1/workers "{\"name\": \"shell $$\", \"lease\": 30, \"handlers\": {\"$handler\": {}}}" | sed 's/^{"id":"\([^"]*\)".*/\1/')
[ -n "$worker" ] || exit 1
echo "ready $worker"

stop=
trap 'stop=1' TERM INT
( while sleep 10 && ask POST "/v1/workers/$worker/renew" '{}'; do :; done; kill $$ ) >/dev/null &  # who cannot renew has to stop
renewing=$!

number=0
while [ -z "$stop" ]; do
    number=$((number + 1))
    claimed=$(ask POST "/v1/workers/$worker/claim" "{\"claim\": $number, \"wait\": 5}") || break
    task=$(printf %s "$claimed" | sed -n 's/^{"items":\[{"id":"\([^"]*\)".*/\1/p')
    [ -n "$task" ] || continue
    attempt=$(printf %s "$claimed" | sed 's/.*"attempt":\([0-9]*\).*/\1/')
    result=$(printf %s "$claimed" | sed 's/^{"items":\[\(.*\)\]}$/\1/' | "$@")
    case $? in
        0) end="\"result\": ${result:-null}" ;;
        75) end='"outcome": "retry", "delay": 10' ;;
        65) end='"outcome": "failed", "fatal": true, "error": {"type": "ExitCode", "message": "65"}' ;;
        *) end='"outcome": "failed", "error": {"type": "ExitCode", "message": "see the output of the worker"}' ;;
    esac
    answer=$(ask POST "/v1/tasks/$task/complete" "{\"worker\": \"$worker\", \"attempt\": $attempt, $end}") || break
    echo "$task $attempt $answer"
done
kill $renewing 2>/dev/null
ask DELETE "/v1/workers/$worker" '{}'
