#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the disk of a Debian guest with systemd: one partition with an ext4 file system,
# without a kernel.
#
#   make-image.sh SUITE ARCHIVE INTO [PACKAGE...]
#
# The guest has the users root, alice and bob, and a service that runs the job found on the
# guest's second disk, which is mounted at /usr/local before systemd starts.
set -euo pipefail

readonly suite=$1 archive=$2 into=$3
readonly root=$into/root
shift 3

packages=(
    systemd-sysv systemd-container udev dbus dbus-user-session libpam-systemd polkitd
    # What the installed programs link.
    libhwloc15 zlib1g libudev1
    # What the checks run.
    sudo procps kmod podman crun
)
case $suite in
    bookworm) packages+=(libelf1) ;;
    *) packages+=(libelf1t64) ;;
esac
packages+=("$@")

# The init program of the kernel: it mounts the second disk and starts systemd.
write_init() {
    cat >"$root/sbin/lab-init" <<'INIT'
#!/bin/sh
mount -t devtmpfs dev /dev
# The kernel numbers the two disks in any order. The other one has partitions.
for disk in /dev/nvme0n1 /dev/nvme0n2; do
    mount -t ext4 -o ro "$disk" /usr/local 2>/dev/null && break
done
ln -sf /usr/local/lib/usher-lab/config "/boot/config-$(uname -r)"
exec /sbin/init
INIT
    chmod 755 "$root/sbin/lab-init"
}

write_job_service() {
    cat >"$root/etc/systemd/system/lab-job.service" <<'UNIT'
[Unit]
Description=The job of this guest
After=systemd-logind.service dbus.service systemd-user-sessions.service

[Service]
Type=exec
ExecStart=/usr/local/lib/usher-lab/job
TimeoutStopSec=5

[Install]
WantedBy=multi-user.target
UNIT
    chroot "$root" systemctl --quiet enable lab-job.service
}

customize() {
    local user
    for user in alice bob; do
        chroot "$root" useradd --create-home --shell /bin/bash "$user"
    done
    echo usherlab >"$root/etc/hostname"
    echo '127.0.0.1 localhost usherlab' >"$root/etc/hosts"
    echo 'LABEL=lab-root / ext4 rw,relatime 0 1' >"$root/etc/fstab"
    # Work that has nothing to do with the checks, and costs emulated time.
    chroot "$root" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer \
        dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-networkd-wait-online.service \
        podman.service podman.socket podman-restart.service podman-auto-update.timer \
        netavark-dhcp-proxy.socket netavark-dhcp-proxy.service getty@tty1.service \
        serial-getty@ttyS0.service \
        e2scrub_reap.service
    # A check that needs docker starts it.
    if [ -x "$root/usr/sbin/dockerd" ]; then
        chroot "$root" systemctl --quiet disable docker.service docker.socket containerd.service
    fi
    mkdir -p "$root/var/log/journal"
    # Otherwise the first boot of each guest enables units and rebuilds caches.
    chroot "$root" systemd-machine-id-setup >/dev/null 2>&1
    touch --date=tomorrow "$root/etc/.updated" "$root/var/.updated"
    write_init
    write_job_service
}

# A partition table with the signature 0x75736872 and one Linux partition of 4 GiB at 1 MiB.
# The kernel finds the root file system by the signature: without an initramfs it knows no
# labels of file systems.
write_disk() {
    local disk=$into/disk
    truncate --size=$((4097 << 20)) "$disk"
    mke2fs -q -F -t ext4 -L lab-root -d "$root" -E lazy_itable_init=1,offset=$((1 << 20)) "$disk" 4G
    {
        printf '\x72\x68\x73\x75\0\0'
        printf '\0\xfe\xff\xff\x83\xfe\xff\xff\x00\x08\x00\x00\x00\x00\x80\x00'
        head -c 48 /dev/zero
        printf '\x55\xaa'
    } | dd of="$disk" bs=1 seek=440 conv=notrunc status=none
}

mkdir "$root"
mmdebstrap --quiet --mode=root --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    "$suite" "$root" "deb $archive $suite main" "deb $archive $suite-updates main"
customize
write_disk
rm -rf --one-file-system "$root"
