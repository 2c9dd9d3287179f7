// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits the data that background work has handed to the kernel and that the
 * kernel has not yet sent to the network.
 *
 * When a sender is stopped, it hands over no more data, but the kernel still
 * sends the data in the sender's sockets. For a bulk transfer this is half a
 * megabyte or more, which takes tens of milliseconds to send. TCP_NOTSENT_LOWAT
 * limits the unsent data in a socket. TCP itself limits the data in the queues
 * of this machine ("TCP small queues"). The setting does not reduce the
 * throughput.
 *
 * The BPF program is attached to the cgroup of the background program and runs
 * for each of its connections when the connection is established. The kernel
 * detaches the BPF program when the process that attached it ends. A connection
 * keeps the setting until the connection ends. The only cost is that the kernel
 * wakes the sender more often.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/*
 * Copies of the values in netinet/in.h and linux/tcp.h. These headers cannot be
 * included here, because they need headers of a C library.
 */
#define IPPROTO_TCP 6
#define TCP_NOTSENT_LOWAT 25

/*
 * The limit of unsent data per socket: the data of 1.3 ms on a link of 100
 * Mbit/s. One send call may exceed the limit by one packet.
 */
#define BACKLOG_BYTES (16 * 1024)

SEC("sockops")
int bound_backlog(struct bpf_sock_ops *ops)
{
	int bytes = BACKLOG_BYTES;

	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		/*
		 * The result is ignored: without the setting, a connection
		 * works as before, but without the limit.
		 */
		bpf_setsockopt(ops, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes,
			       sizeof(bytes));
	}
	return 1;
}
