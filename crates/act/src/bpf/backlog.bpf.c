// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits the data that background work has handed to the kernel and that the
 * kernel has not yet sent to the network.
 *
 * Stopping a sender stops its calls, but not the data in its sockets: half a
 * megabyte and more for a bulk transfer, which takes tens of milliseconds to
 * send. TCP_NOTSENT_LOWAT limits the unsent data in a socket. TCP itself limits
 * the data in this machine's own queues (small queues). Throughput stays equal.
 *
 * The BPF program is attached to the cgroup of the background program and runs
 * for each of its connections when the connection is established. It is removed
 * with the process that attached it. A connection keeps the setting until it
 * ends; the only effect is that its sender is woken more often.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* From netinet/in.h and linux/tcp.h, which need headers of a C library. */
#define IPPROTO_TCP 6
#define TCP_NOTSENT_LOWAT 25

/* 1.3 ms on a link of 100 Mbit/s. One call may exceed it by one packet. */
#define BACKLOG_BYTES (16 * 1024)

SEC("sockops")
int bound_backlog(struct bpf_sock_ops *ops)
{
	int bytes = BACKLOG_BYTES;

	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		/* Without the setting, a connection works as before. */
		bpf_setsockopt(ops, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes,
			       sizeof(bytes));
	}
	return 1;
}
