#!/bin/sh
# Run a baseline and a candidate in turn, until `analyzer gate` has a verdict.
#
# Usage: gate.sh 'BASELINE COMMAND' 'CANDIDATE COMMAND' [OPTION OF ANALYZER GATE]...
# Environment: WATTLINE_GPUS (default 0), WATTLINE_REPEATS (default 8), WATTLINE_EXPERIMENT (default: one per call).
# Exit code: that of `analyzer gate` (0 pass, 3 regression, 4 cannot tell), or 1 if a command fails.
set -eu

if [ $# -lt 2 ]; then
    echo "usage: gate.sh 'BASELINE COMMAND' 'CANDIDATE COMMAND' [OPTION OF ANALYZER GATE]..." >&2
    exit 2
fi
baseline=$1
candidate=$2
shift 2
gpus=${WATTLINE_GPUS:-0}
repeats=${WATTLINE_REPEATS:-8}
experiment=${WATTLINE_EXPERIMENT:-gate-$(date +%s)-$$}

measure() { # VARIANT REPEAT COMMAND
    workloads run --gpus "$gpus" -l experiment="$experiment" -l variant="$1" -l repeat="$2" -- sh -c "$3" || {
        echo "gate.sh: the $1 failed with exit code $?: $3" >&2
        exit 1
    }
}

repeat=0
code=4
while [ "$code" -eq 4 ] && [ "$repeat" -lt "$repeats" ]; do
    repeat=$((repeat + 1))
    if [ $((repeat % 2)) -eq 1 ]; then # the order alternates, so that a slow drift cancels
        measure baseline "$repeat" "$baseline"
        measure candidate "$repeat" "$candidate"
    else
        measure candidate "$repeat" "$candidate"
        measure baseline "$repeat" "$baseline"
    fi
    code=0
    analyzer gate --baseline "experiment=$experiment,variant=baseline" \
        --candidate "experiment=$experiment,variant=candidate" --repeats "$repeats" "$@" || code=$?
done
exit "$code"
