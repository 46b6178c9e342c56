#!/usr/bin/env bash
# A distributed training as a PBS job. From the project's folder:
#
#   qsub cluster/pbs.sh
#   qsub -l select=4:ncpus=16 -v SCRIPT=train_a2c_distributed.py,FLAGS="--env starpilot" cluster/pbs.sh
#
# One process on each node of $PBS_NODEFILE, which starts that node's workers, of IMPALA its actors and learners.
# Two minutes before its time limit the job stops, submits itself again with the same resources, and goes on in the
# same folder. If PBS asks it to stop, it saves and ends: a job that is deleted stays deleted, and one that is
# preempted goes on when PBS queues it again, as `-r y` lets it do.
#PBS -N rl-cluster
#PBS -l select=2:ncpus=8
#PBS -l walltime=04:00:00
#PBS -r y
#PBS -j oe

# In the environment (qsub -v): PROJECT (by default the folder that qsub was called in), PYTHON, SCRIPT, FLAGS,
# OUTPUT (the folder of the run, runs/pbs_<job>), REMOTE (runs a command line on a host: pbs_tmrsh, or else ssh),
# MARGIN (how many seconds before the limit it stops, 120), PBS_WALLTIME (seconds of the limit, if neither PBS sets
# it nor qstat tells it), PBS_SCRIPT (what is submitted again, cluster/pbs.sh). Or SETTINGS, a bash file that sets
# any of these; flags with a comma, which `qsub -v` splits, need it.
set -uo pipefail
if [ -n "${SETTINGS:-}" ]; then
    settings=$(cd "$PBS_O_WORKDIR" && realpath -e "$SETTINGS") || exit 2
    set -a
    # shellcheck disable=SC1090
    . "$settings" || exit 2
    set +a
fi
cd "${PROJECT:-$PBS_O_WORKDIR}" || exit 2
job=${PBS_JOBID%%.*}
output=$(realpath -m "${OUTPUT:-runs/pbs_$job}")
case $output in
*,*)
    echo "pbs.sh: error: OUTPUT = $output: qsub cannot pass on a path with a comma" >&2
    exit 2
    ;;
esac
remote=${REMOTE:-}
if [ -z "$remote" ]; then
    if command -v pbs_tmrsh >/dev/null; then remote=pbs_tmrsh; else remote="ssh -o BatchMode=yes"; fi
fi
run= early= told=
# stop: has the run stop, or not begin.
stop() {
    told=yes
    if [ -n "$run" ]; then kill -TERM "$run" 2>/dev/null; else early=yes; fi
}
trap stop TERM USR1
hosts=$(mktemp) # PBS_NODEFILE names a node once for each of its slots
trap 'rm -f "$hosts"' EXIT
awk '!seen[$0]++' "$PBS_NODEFILE" >"$hosts"
echo "$(date -Is) job $PBS_JOBID on $(paste -sd' ' "$hosts")"

# What PBS knows of this job, an attribute a line; nothing where a node cannot ask it. A line that begins with a
# tab goes on with the one before.
attributes=$(qstat -f "$PBS_JOBID" 2>/dev/null |
    awk '/^\t/ { printf "%s", substr($0, 2); next } { printf "%s%s", (NR > 1 ? "\n" : ""), $0 }')
attribute() { sed -n "s/^ *$1 = //p" <<<"$attributes" | sed -n 1p; }

margin=${MARGIN:-120}
walltime=${PBS_WALLTIME:-}
if [ -z "$walltime" ]; then # [days:]hours:minutes:seconds, or seconds
    walltime=$(attribute Resource_List.walltime |
        awk -F: '{ unit = 1; for (i = NF; i > 0; i--) { total += unit * $i; unit *= (unit < 3600 ? 60 : 24) } print total }')
fi
limit=infinity
if [ "${walltime:-0}" -gt 0 ]; then
    limit=$((walltime > 2 * margin ? walltime - margin : (walltime + 1) / 2))
else
    echo "pbs.sh: warning: neither PBS_WALLTIME nor qstat tells the time limit: the job does not stop before it" >&2
fi

number=${job//[!0-9]/}
export REMOTE=$remote MASTER_PORT=$((15000 + 10#${number:-0} % 15000)) # two jobs that share a node do not meet
script=${SCRIPT:-train_ppo_distributed.py}
set -f # words, not patterns of file names
# shellcheck disable=SC2206
flags=(${FLAGS:-})
set +f
SECONDS=0
if [ -n "$early" ]; then
    code=143
else
    timeout --foreground --preserve-status "$limit" cluster/run_by_hand.sh "$hosts" "$script" \
        --output-dir "$output" --resume auto ${flags[@]+"${flags[@]}"} &
    run=$!
    [ -z "$early" ] || { sleep 1 && stop; } # told to just now: `timeout` is there by then
    while kill -0 "$run" 2>/dev/null; do
        wait "$run" # until it ends or a signal comes
    done
    wait "$run"
    code=$?
fi

# again: submits this job anew, with the resources, queue and settings that it has.
again() {
    local name value options=() settings=$output/pbs_settings
    for name in select place nodes walltime; do
        value=$(attribute "Resource_List.$name")
        # PBS that knows `select` has made it of `nodes`, and takes one of them.
        [ "$name" = nodes ] && [ -n "$(attribute Resource_List.select)" ] && continue
        [ -n "$value" ] && options+=(-l "$name=$value")
    done
    value=$(attribute Account_Name)
    [ -n "$value" ] && options+=(-A "$value")
    [ -n "${PBS_O_QUEUE:-}" ] && options+=(-q "$PBS_O_QUEUE")
    [ -n "${PBS_JOBNAME:-}" ] && options+=(-N "$PBS_JOBNAME")
    PROJECT=$PWD OUTPUT=$output
    mkdir -p "$output" || return
    for name in PROJECT PYTHON SCRIPT FLAGS OUTPUT REMOTE MARGIN PBS_WALLTIME PBS_SCRIPT; do
        # What the environment says goes over this file.
        [ -z "${!name+set}" ] || printf '[ -n "${%s+set}" ] || %s=%q\n' "$name" "$name" "${!name}"
    done >"$settings" || return
    qsub ${options[@]+"${options[@]}"} -v "SETTINGS=$settings" "${PBS_SCRIPT:-cluster/pbs.sh}"
}
# 143 with the limit reached: `timeout` has stopped the run. If PBS or a user did, they decide how it goes on.
if [ "$code" -eq 143 ] && [ -z "$told" ] && [ "$limit" != infinity ] && [ "$SECONDS" -ge "$limit" ]; then
    if again; then
        echo "$(date -Is) the time limit is near: submitted again, to go on in $output"
    else
        echo "$(date -Is) the time limit is near, but it could not be submitted again, to go on in $output" >&2
    fi
fi
exit "$code"
