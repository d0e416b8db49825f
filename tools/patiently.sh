#!/bin/sh
# patiently.sh SECONDS WHAT COMMAND...: say what is done, run the command, and every so many seconds say that it runs.
set -eu
seconds=$1 what=$2
shift 2
echo "$what" >&2
began=$(date +%s)
# The sleep that outlives this script must not hold its output open.
(while sleep "$seconds" </dev/null >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    echo "$what: $(($(date +%s) - began)) s so far" >&2
done) &
reporter=$!
trap 'kill $reporter' EXIT
trap 'exit 130' INT TERM
"$@"
