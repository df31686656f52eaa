#!/bin/sh
# Install the unit and its files. Run it as root, and again after an update. It starts nothing.
set -eu
here=$(dirname "$0")
root=${DESTDIR:-}
put() { install -D -m 0644 "$here/$1" "$root$2"; }
put wattline-exporter.service /etc/systemd/system/wattline-exporter.service
put wattline.slice /etc/systemd/system/wattline.slice
put wattline-sysusers.conf /usr/lib/sysusers.d/wattline.conf
put wattline-rapl.conf /usr/lib/tmpfiles.d/wattline-rapl.conf
test -e "$root/etc/default/wattline-exporter" || put wattline-exporter.default /etc/default/wattline-exporter
test -n "$root" && exit
systemd-sysusers
systemctl daemon-reload
runuser -u wattline -- /opt/wattline/bin/exporter --version >/dev/null || {
	echo "install.sh: the user wattline cannot run /opt/wattline/bin/exporter; install it with umask 022 and a Python outside of /root and /home" >&2
	exit 1
}
echo "Installed. Options: /etc/default/wattline-exporter. Start: systemctl enable --now wattline-exporter. After an update: systemctl restart wattline-exporter"
