#!/bin/sh
# make-images.sh: put the test container images into root's and agent's storage; runs inside the VM's system.
#   localhost/debian   a full userland: bash, python3, git, java, node, bubblewrap
#   localhost/systemd  the same with systemd as its command
#   localhost/busybox  one multi-call binary, sh but no bash
#   localhost/static   one static binary, /hello, no shell
set -eu
cd /var/tmp/images

mkdir -p busybox/bin busybox/tmp static
chmod 1777 busybox/tmp
cp /bin/busybox busybox/bin/busybox
for applet in $(busybox --list); do
    [ "$applet" = busybox ] || ln -s busybox "busybox/bin/$applet"
done
gcc -static -O2 -o static/hello hello.c
tar -C busybox -cf busybox.tar .
tar -C static -cf static.tar .

cat >import.sh <<'IMPORT'
set -eu
podman import -q --change 'CMD ["/bin/bash"]' debian.tar localhost/debian
podman import -q --change 'CMD ["/bin/sh"]' busybox.tar localhost/busybox
podman import -q --change 'CMD ["/hello"]' static.tar localhost/static
base=$(podman create localhost/debian)
podman commit -q --change 'CMD ["/sbin/init"]' "$base" localhost/systemd
podman rm "$base"
podman images
IMPORT

export PODMAN_IGNORE_CGROUPSV1_WARNING=1
sh import.sh
install -d -o agent -g agent -m 700 /run/user/1000
setpriv --reuid=agent --regid=agent --init-groups env HOME=/home/agent USER=agent XDG_RUNTIME_DIR=/run/user/1000 \
    sh import.sh
