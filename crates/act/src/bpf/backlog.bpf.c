// SPDX-License-Identifier: GPL-2.0-only
/*
 * Bounds what background work has handed to the kernel and the kernel not yet
 * to the network.
 *
 * Stopping a sender stops its calls, not what lies in its sockets: half a
 * megabyte and more for a bulk transfer, which goes on for tens of milliseconds.
 * With TCP_NOTSENT_LOWAT a sender may hand over only so much ahead of what is in
 * flight; what is in flight on this machine's own queues TCP bounds by itself
 * (small queues). Throughput is the same.
 *
 * The program is attached to the background program's cgroup, sees each of its
 * connections as it is established, and is gone with the process that attached
 * it. A connection keeps the setting for its life; it only asks its sender to
 * be woken more often.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* From netinet/in.h and linux/tcp.h, which want headers of a C library. */
#define IPPROTO_TCP 6
#define TCP_NOTSENT_LOWAT 25

/* 1.3 ms of a link of 100 Mbit/s. One call may overshoot it by a packet. */
#define BACKLOG_BYTES (16 * 1024)

SEC("sockops")
int bound_backlog(struct bpf_sock_ops *ops)
{
	int bytes = BACKLOG_BYTES;

	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		/* A connection that refuses it is none the worse. */
		bpf_setsockopt(ops, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes,
			       sizeof(bytes));
	}
	return 1;
}
