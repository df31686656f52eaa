#!/bin/sh
# A Kubernetes of one node, made of Debian's packages and sources alone, in namespaces of its own. As root:
#   tests/deploy/cluster.sh FOLDER COMMAND...
# runs COMMAND with KUBECONFIG in that node's network; with COMMAND all of it ends. The images in FOLDER/images (docker
# save) are on the node. The first time it builds the servers: half an hour on two cores and 6 GB, of which 1 GB remains.
# It is Kubernetes 1.20.2, the last whose servers Debian has the source of, with etcd, containerd and runc of Debian 12.
set -eu
MIRROR=http://deb.debian.org/debian
SERVERS="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy"
SOURCE=kubernetes_1.20.5+really1.20.2.orig.tar.gz

# A shell script in another root, with /proc and /dev there.
within() {
    unshare --mount --pid --fork --kill-child sh -euc '
        mount --make-rprivate /; mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"
        exec chroot "$0" sh -euc "$@"' "$@"
}

# The servers, built where Debian 12's Go is.
build() {
    [ -d "$1" ] || debootstrap --variant=minbase \
        --include=ca-certificates,dpkg-dev,gcc,golang-go,jq,libc6-dev,make,procps,rsync bookworm "$1" "$MIRROR"
    echo "deb-src $MIRROR bookworm main" >"$1/etc/apt/sources.list.d/sources.list"
    within "$1" '
        cd /root; export HOME=/root SHELL=/bin/bash USER=root KUBE_GIT_VERSION_FILE=/root/version
        apt-get update -qq; apt-get source -qq --download-only kubernetes; [ -d kubernetes-1.20.2 ] || tar -xzf "$0"
        printf "KUBE_GIT_%s\n" COMMIT=debian TREE_STATE=clean VERSION=v1.20.2 MAJOR=1 MINOR=20 >version
        make -C kubernetes-1.20.2 WHAT="$1"' "$SOURCE" "$(printf 'cmd/%s ' $SERVERS)"
}

# Tokens, and a kubeconfig for each who has one.
credentials() {
    openssl genrsa -out "$1/sa.key" 2048 2>/dev/null
    openssl rsa -in "$1/sa.key" -pubout -out "$1/sa.pub" 2>/dev/null
    for user in admin,system:masters system:kube-controller-manager,control system:kube-scheduler,control \
        system:kube-proxy,system:node-proxier system:node:node,system:nodes; do
        name=${user%,*} token=$(openssl rand -hex 16)
        printf '%s,%s,%s,"%s"\n' "$token" "$name" "$name" "${user#*,}" >>"$1/tokens.csv"
        printf '%s\n' 'apiVersion: v1' 'kind: Config' 'current-context: it' \
            'clusters: [{name: it, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]' \
            "users: [{name: it, user: {token: $token}}]" 'contexts: [{name: it, context: {cluster: it, user: it}}]' \
            >"$1/${name##*:}.conf"
    done
}

# The image of the container that holds a pod's namespaces.
pause_image() {
    work=$(mktemp -d)
    tar -C "$1/bin" -cf "$work/layer.tar" busybox
    printf '{"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/busybox", "sleep", "2147483647"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' "$(sha256sum <"$work/layer.tar" | cut -d' ' -f1)" \
        >"$work/config.json"
    echo '[{"Config": "config.json", "RepoTags": ["localhost/pause:1"], "Layers": ["layer.tar"]}]' >"$work/manifest.json"
    tar -C "$work" -cf "$1/pause.tar" layer.tar config.json manifest.json
    rm -r "$work"
}

make_node() {
    network=conntrack,containernetworking-plugins,iproute2,iptables,socat
    debootstrap --variant=minbase --include=busybox-static,ca-certificates,containerd,etcd-server,procps,runc,$network \
        bookworm "$1" "$MIRROR"
    mkdir -p "$1/etc/containerd" "$1/etc/cni/net.d" "$1/etc/kubernetes" "$1/images" "$1/var/log/kubernetes"
    credentials "$1/etc/kubernetes"
    pause_image "$1"
    printf '127.0.0.1 localhost\n192.0.2.10 node\n' >"$1/etc/hosts"
    cat >"$1/etc/containerd/config.toml" <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  cni = {bin_dir = "/usr/lib/cni", conf_dir = "/etc/cni/net.d"}
END
    cat >"$1/etc/cni/net.d/bridge.conflist" <<END
{"cniVersion": "0.4.0", "name": "bridge", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
  "ipMasq": true, "hairpinMode": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]],
  "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
    cat >"$1/etc/kubernetes/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failSwapOn: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 50Mi, nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
END
}

# What the first process of the node does. What the kubelet would set for the whole machine it finds set already.
START='
mount --make-rprivate /; mount --bind "$0" "$0"; cd "$0"; hostname node
mount -t proc proc proc; mount -t sysfs sysfs sys; mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount -t tmpfs -o mode=755 run run; mount -t tmpfs tmp tmp; mount --rbind /dev dev; mount --bind "$1" images
mkdir -p old run/set
for one in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    value=run/set/$(basename ${one%=*}); echo ${one#*=} >$value; mount --bind $value proc/sys/${one%=*}
done
pivot_root . old; umount -l /old; mount --make-rshared /
ip link set lo up; ip link add node0 type veth peer name node1; ip link set node1 up; ip link set node0 up
ip address add 192.0.2.10/24 dev node0; ip route add default dev node0
sysctl -qw net.ipv4.ip_forward=1; sysctl -qw net.bridge.bridge-nf-call-iptables=1 || true
cd /etc/kubernetes
start() { "$@" >"/var/log/kubernetes/$1.log" 2>&1 & }
start containerd
start etcd --data-dir=/run/etcd
start kube-apiserver --etcd-servers=http://127.0.0.1:2379 --service-cluster-ip-range=10.96.0.0/16 \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=sa.pub \
    --service-account-signing-key-file=sa.key --token-auth-file=tokens.csv --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --allow-privileged=true --cert-dir=/run/kubernetes \
    --advertise-address=192.0.2.10
until [ -s /run/kubernetes/apiserver.crt ]; do sleep 1; done
start kube-controller-manager --kubeconfig=kube-controller-manager.conf --use-service-account-credentials=true \
    --service-account-private-key-file=sa.key --root-ca-file=/run/kubernetes/apiserver.crt --leader-elect=false
start kube-scheduler --kubeconfig=kube-scheduler.conf --leader-elect=false
until ctr version >/dev/null 2>&1; do sleep 1; done
for image in /pause.tar $(find /images -name "*.tar"); do ctr -n k8s.io images import "$image" >/dev/null; done
start kubelet --config=kubelet.yaml --kubeconfig=node.conf --hostname-override=node --node-ip=192.0.2.10 \
    --container-runtime=remote --container-runtime-endpoint=unix:///run/containerd/containerd.sock \
    --node-labels=nvidia.com/gpu.present=true
start kube-proxy --kubeconfig=kube-proxy.conf --cluster-cidr=10.244.0.0/24 --hostname-override=node \
    --conntrack-max-per-core=0
while sleep 1; do :; done'

folder=$1 && shift
mkdir -p "$folder/images"
if [ ! -d "$folder/node" ]; then
    build "$folder/build"
    make_node "$folder/unfinished"
    for server in $SERVERS; do
        cp "$folder/build/root/kubernetes-1.20.2/_output/local/go/bin/$server" "$folder/unfinished/usr/local/bin/"
    done
    mv "$folder/unfinished" "$folder/node"
    rm -rf "$folder/build"
fi
unshare --pid --mount --net --uts --ipc --fork --kill-child sh -euc "$START" "$folder/node" "$folder/images" &
outside=$!
end() {
    kill -KILL $outside
    wait $outside 2>/dev/null || true
    find /sys/fs/cgroup -depth -type d -path '*/kubepods*' -exec rmdir {} + 2>/dev/null || true
}
trap end EXIT
export KUBECONFIG="$folder/node/etc/kubernetes/admin.conf"
inside() { nsenter --net --target "$(tr -d ' ' <"/proc/$outside/task/$outside/children")" "$@"; }
until inside kubectl wait --for=condition=Ready node/node --timeout=60s >/dev/null 2>&1; do
    kill -0 $outside
    sleep 1
done
inside "$@"
