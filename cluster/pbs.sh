#!/usr/bin/env bash
# A distributed training as a PBS job. From the project's folder:
#
#   qsub cluster/pbs.sh
#   qsub -v SCRIPT=train_a2c_distributed.py,FLAGS="--env starpilot" cluster/pbs.sh
#
# One process on each node of $PBS_NODEFILE, which starts that node's workers, of IMPALA its actors and learners.
# The job stops two minutes before its time limit and when PBS asks it to, submits itself again, and goes on in the
# same folder.
#PBS -N rl-cluster
#PBS -l select=2:ncpus=8
#PBS -l walltime=04:00:00
#PBS -r y
#PBS -j oe

# In the environment: PROJECT (by default the folder that qsub was called in), PYTHON, SCRIPT, FLAGS, OUTPUT (the
# folder of the run, runs/pbs_<job>), REMOTE (runs a command line on a host: pbs_tmrsh, or else ssh), and
# PBS_WALLTIME, the seconds of the time limit, which not every PBS sets.
set -uo pipefail
cd "${PROJECT:-$PBS_O_WORKDIR}" || exit 2
job=${PBS_JOBID%%.*}
output=${OUTPUT:-runs/pbs_$job}
remote=${REMOTE:-}
if [ -z "$remote" ]; then
    if command -v pbs_tmrsh >/dev/null; then remote=pbs_tmrsh; else remote="ssh -o BatchMode=yes"; fi
fi
hosts=$(mktemp) # PBS_NODEFILE names a node once for each of its slots
trap 'rm -f "$hosts"' EXIT
awk '!seen[$0]++' "$PBS_NODEFILE" >"$hosts"
echo "$(date -Is) job $PBS_JOBID on $(paste -sd' ' "$hosts")"

limit=infinity
[ "${PBS_WALLTIME:-0}" -gt 240 ] && limit=$((PBS_WALLTIME - 120))
number=${job//[!0-9]/}
export REMOTE=$remote MASTER_PORT=$((15000 + 10#${number:-0} % 15000)) # two jobs that share a node do not meet
# shellcheck disable=SC2086  # FLAGS are words
timeout --foreground --preserve-status "$limit" cluster/run_by_hand.sh "$hosts" \
    "${SCRIPT:-train_ppo_distributed.py}" --output-dir "$output" --resume auto ${FLAGS:-} &
run=$!
trap 'kill -TERM "$run" 2>/dev/null' TERM USR1
while true; do
    wait "$run"
    code=$?
    kill -0 "$run" 2>/dev/null || break # else it was a signal that ended the waiting
done

if [ "$code" -eq 143 ]; then
    echo "$(date -Is) stopped by a signal: submitted again, to go on in $output"
    qsub -v "OUTPUT=$output,SCRIPT=${SCRIPT:-train_ppo_distributed.py},FLAGS=${FLAGS:-}" "${PBS_SCRIPT:-cluster/pbs.sh}"
fi
exit "$code"
