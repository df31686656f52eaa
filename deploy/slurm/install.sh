#!/bin/sh
# Install wattline.sh and its settings. Run it as root on the nodes and on the controller, and again after an update.
set -eu
here=$(dirname "$0")
root=${DESTDIR:-}
folder=/etc/slurm
install -D -m 0755 "$here/wattline.sh" "$root$folder/wattline.sh"
test -e "$root$folder/wattline.conf" || install -D -m 0644 "$here/wattline.conf" "$root$folder/wattline.conf"
install -D -m 0644 "$here/wattline-slurm.logrotate" "$root/etc/logrotate.d/wattline-slurm"
if test -z "$root"; then
	log=/var/log/wattline-slurm.log
	touch "$log"
	user=$(scontrol show config 2>/dev/null | sed -n 's/^SlurmUser *= *\([^(]*\).*/\1/p')
	test -z "$user" || chown "$user" "$log" # the controller's epilog runs as SlurmUser
	/opt/wattline/bin/python3 -I -c 'import wattline_workloads.slurm' || {
		echo "install.sh: /opt/wattline has no workloads; run: /opt/wattline/bin/pip install '.[exporter,workloads]'" >&2
		exit 1
	}
fi
cat <<END
Installed. Add these lines to slurm.conf, then run scontrol reconfigure:
Prolog=$folder/wattline.sh
Epilog=$folder/wattline.sh
TaskProlog=$folder/wattline.sh
EpilogSlurmctld=$folder/wattline.sh
END
