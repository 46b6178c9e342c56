#!/usr/bin/env bash
# A distributed training as a PBS job. From the project's folder:
#
#   qsub cluster/pbs.sh
#   qsub -l select=4:ncpus=16 -v SCRIPT=train.py,FLAGS="--algorithm a2c --mode distributed" cluster/pbs.sh
#
# One process on each node of $PBS_NODEFILE starts that node's workers (IMPALA: its actors and learners). Two minutes
# before its time limit the job stops, submits itself again with the same resources, and resumes in the same folder.
# If PBS asks it to stop, it saves and ends: a deleted job stays deleted, and a preempted one resumes when PBS queues
# it again, which `-r y` allows.
#PBS -N rl-cluster
#PBS -l select=2:ncpus=8
#PBS -l walltime=04:00:00
#PBS -r y
#PBS -j oe

# Environment variables (qsub -v):
#   PROJECT       folder of the project (default: the folder that qsub was called in)
#   PYTHON        Python interpreter (venv/bin/python)
#   SCRIPT        training script (train_ppo_distributed.py)
#   FLAGS         its flags
#   OUTPUT        folder of the run (runs/pbs_<job>)
#   REMOTE        command that runs a command line on a host (pbs_tmrsh, or else ssh)
#   MARGIN        seconds before the time limit at which the run stops (120)
#   PBS_WALLTIME  the time limit in seconds, where qstat does not tell it
#   PBS_SCRIPT    the script that is submitted again (cluster/pbs.sh)
#   SETTINGS      a bash file that sets any of these; needed for flags with a comma, at which `qsub -v` splits
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
# stop: stops the run, or keeps it from starting.
stop() {
    told=yes
    if [ -n "$run" ]; then kill -TERM "$run" 2>/dev/null; else early=yes; fi
}
trap stop TERM USR1
hosts=$(mktemp) # PBS_NODEFILE names a node once for each of its slots
trap 'rm -f "$hosts"' EXIT
awk '!seen[$0]++' "$PBS_NODEFILE" >"$hosts"
echo "$(date -Is) job $PBS_JOBID on $(paste -sd' ' "$hosts")"

# The attributes of this job, one per line; empty where a node cannot ask PBS. In the output of qstat, a line that
# starts with a tab continues the one before.
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
    echo "pbs.sh: warning: neither PBS_WALLTIME nor qstat gives the time limit: the job does not stop before it" >&2
fi

number=${job//[!0-9]/}
export REMOTE=$remote MASTER_PORT=$((15000 + 10#${number:-0} % 15000)) # two jobs that share a node use different ports
script=${SCRIPT:-train_ppo_distributed.py}
set -f # split into words, but do not expand file name patterns
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
    [ -z "$early" ] || { sleep 1 && stop; } # the signal came just now; `timeout` handles signals by then
    while kill -0 "$run" 2>/dev/null; do
        wait "$run" # until it ends or a signal comes
    done
    wait "$run"
    code=$?
fi

# again: submits this job again with its resources, queue and settings.
again() {
    local name value options=() settings=$output/pbs_settings
    for name in select place nodes walltime; do
        value=$(attribute "Resource_List.$name")
        # PBS versions with `select` derive it from `nodes` and accept only one of both.
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
        # Variables of the environment override this file.
        [ -z "${!name+set}" ] || printf '[ -n "${%s+set}" ] || %s=%q\n' "$name" "$name" "${!name}"
    done >"$settings" || return
    qsub ${options[@]+"${options[@]}"} -v "SETTINGS=$settings" "${PBS_SCRIPT:-cluster/pbs.sh}"
}
# Exit code 143 at the limit: `timeout` stopped the run. If PBS or a user stopped it, they decide what happens next.
if [ "$code" -eq 143 ] && [ -z "$told" ] && [ "$limit" != infinity ] && [ "$SECONDS" -ge "$limit" ]; then
    if again; then
        echo "$(date -Is) the time limit is near: submitted again, to resume in $output"
    else
        echo "$(date -Is) the time limit is near, but the job could not be submitted again, to resume in $output" >&2
    fi
fi
exit "$code"
