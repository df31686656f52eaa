#!/bin/sh
# Prolog, Epilog, TaskProlog and EpilogSlurmctld of Slurm. It always succeeds; the prolog takes at most 5 s.
# Settings: wattline.conf in the same folder.
trap 'exit 0' EXIT
user_exporter=${WATTLINE_EXPORTER:-}
set -a
WATTLINE_EXPORTER=unix:///run/wattline/api.sock
WATTLINE_PYTHON=/opt/wattline/bin/python3
WATTLINE_SLURM_LOG=/var/log/wattline-slurm.log
settings=$(dirname "$0")/wattline.conf
test -r "$settings" && . "$settings"
set +a

if [ "${SLURM_SCRIPT_CONTEXT:-}" = prolog_task ]; then
	# The address of the exporter, for users who may report runs. A socket belongs to a group.
	test -n "$user_exporter" && exit
	case $WATTLINE_EXPORTER in unix://*) test -w "${WATTLINE_EXPORTER#unix://}" || exit ;; esac
	echo "export WATTLINE_EXPORTER=$WATTLINE_EXPORTER"
	exit
fi

exec </dev/null >/dev/null
(: >>"$WATTLINE_SLURM_LOG") 2>/dev/null && exec 2>>"$WATTLINE_SLURM_LOG"
hook="$WATTLINE_PYTHON -I -m wattline_workloads.slurm"
case ${SLURM_SCRIPT_CONTEXT:-} in
prolog_slurmd) timeout -k 1 4 $hook prolog ;;
epilog_slurmd) timeout -k 1 40 $hook epilog ;;
# It waits for the nodes, and the controller does not. It has a session, since the controller kills the script's process group.
epilog_slurmctld) setsid sh -c "timeout -k 1 600 $hook epilog-slurmctld &" ;;
*) echo "wattline.sh: SLURM_SCRIPT_CONTEXT is '${SLURM_SCRIPT_CONTEXT:-}'; use it as Prolog, Epilog, TaskProlog or EpilogSlurmctld" >&2 ;;
esac
