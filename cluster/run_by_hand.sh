#!/usr/bin/env bash
# Starts a distributed training on the machines of a hosts file, without a scheduler. Run it on the first machine,
# from the project's folder:
#
#   cluster/run_by_hand.sh hosts.txt train_ppo_distributed.py --output-dir runs/first [further flags]
#
# The hosts file has one name or address per line, this machine first. `ssh HOST` must reach every other machine
# without a password, and the project must be in the same folder there. Ctrl-C stops all of them safely.
# Environment variables: PYTHON, MASTER_PORT (29500), REMOTE (a command that takes a host and a command line to
# run there; default: ssh).
set -euo pipefail
if [ $# -lt 2 ] || [ ! -r "$1" ]; then
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
first= early=
# stop: stops the first node, which makes all nodes stop and save.
stop() {
    if [ -n "$first" ]; then kill -TERM "$first" 2>/dev/null || true; else early=yes; fi
}
trap stop INT TERM
mapfile -t hosts < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$1")
if [ ${#hosts[@]} -eq 0 ]; then
    echo "$1 names no host" >&2
    exit 2
fi
shift
remote=${REMOTE:-ssh -o BatchMode=yes}
python=${PYTHON:-venv/bin/python}
port=${MASTER_PORT:-29500}

# command_of RANK FLAGS...: prints the command of node RANK, quoted for a shell
command_of() {
    local rank=$1
    shift
    printf '%q ' "$python" "$@" --num-nodes "${#hosts[@]}" --node-rank "$rank" \
        --master-addr "${hosts[0]}" --master-port "$port"
}

others=()
for ((rank = 1; rank < ${#hosts[@]}; rank++)); do
    # shellcheck disable=SC2086  # a command and its options
    $remote "${hosts[rank]}" "cd $(printf '%q' "$PWD") && exec $(command_of "$rank" "$@")" </dev/null &
    others+=($!)
done
eval "$(command_of 0 "$@") &"
first=$!
[ -z "$early" ] || { sleep 1 && stop; } # the program handles signals by then
while kill -0 "$first" 2>/dev/null; do
    wait "$first" || true # until it ends or a signal comes
done
code=0
wait "$first" || code=$?
if [ "$code" -eq 2 ] && [ ${#others[@]} -gt 0 ]; then
    # Node 0 refused to start and has told the nodes that it could reach. The others would wait for it in vain.
    for ((tenths = 0; tenths < 30; tenths++)); do
        kill -0 "${others[@]}" 2>/dev/null || break # none is left
        sleep 0.1
    done
    kill -TERM "${others[@]}" 2>/dev/null || true
fi
for process in "${others[@]}"; do
    wait "$process" || [ "$code" -ne 0 ] || code=1
done
exit "$code"
