// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts network use per interface:
 *
 * - send and receive calls with their bytes, for the interface of the socket's
 *   route;
 * - packets that the kernel sends for a socket, including acknowledgements and
 *   connection setup.
 *
 * Only IPv4 and IPv6 sockets are counted, because data of other socket families
 * does not leave the machine. Loopback is not counted, because programs do not
 * contend for it.
 *
 * Packets are counted in addition to calls, because a call is traced only when
 * it returns. A bulk sender may be inside one call for a long time, or its call
 * may have filled the socket buffer and returned. In both cases only packets
 * show the current use of the interface.
 *
 * Owner of a packet: the context in which the kernel sends a packet does not
 * identify the owner. Therefore a packet is charged to the owner of the last
 * call on its socket, or to the task that opened the connection. Packets that
 * are sent during the first call on a socket, such as the first datagram, have
 * no owner yet. The call itself is counted instead.
 *
 * Sockets are identified by their cookies, which the kernel never reuses. A new
 * socket at the memory address of a former socket has another cookie, or no
 * cookie yet.
 *
 * Calls that transferred no data are not counted, with one exception: a send
 * that fails with EAGAIN shows that the sender needs the interface now. Such a
 * send updates the time of last use, but not the number of calls.
 *
 * Limits: each call and each packet costs a few map operations. At most 1024
 * pairs of an owner and an interface are counted; use of further pairs is only
 * counted as LOST_DEVICE. The owners of at most 16384 sockets are known;
 * packets of other sockets are not counted.
 */
#include "notify.h"
#include "process_use.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct link_key);
	__type(value, struct link_use);
} link_uses SEC(".maps");

/*
 * The owner of each socket, by the socket's cookie. The least recently used
 * entries are evicted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u32);
} socket_owners SEC(".maps");

static struct link_use *link_use_of(struct link_key *key)
{
	struct link_use *use = bpf_map_lookup_elem(&link_uses, key);

	if (!use) {
		struct link_use none = {};

		bpf_map_update_elem(&link_uses, key, &none, BPF_NOEXIST);
		use = bpf_map_lookup_elem(&link_uses, key);
		if (!use)
			count_loss(LOST_DEVICE);
	}
	return use;
}

/*
 * Returns the interface of the socket's cached route. For a socket without a
 * route, such as a socket that sends datagrams to changing destinations,
 * returns the interface to which the socket is bound or from which it has
 * received. Returns 0 if the interface is unknown.
 */
static __u32 interface_of(struct sock *sk)
{
	struct dst_entry *route = sk->sk_dst_cache;

	if (route)
		return route->dev->ifindex;
	if (sk->__sk_common.skc_bound_dev_if)
		return sk->__sk_common.skc_bound_dev_if;
	return bpf_core_field_exists(sk->sk_rx_dst_ifindex)
		       ? sk->sk_rx_dst_ifindex
		       : 0;
}

static _Bool leaves_the_machine(struct sock *sk)
{
	unsigned short family = sk->__sk_common.skc_family;

	return family == AF_INET || family == AF_INET6;
}

static void count_call(struct link_use *use, _Bool sends, int bytes)
{
	if (bytes <= 0)
		return;
	if (sends) {
		use->sends += 1;
		use->sent_bytes += bytes;
	} else {
		use->receives += 1;
		use->received_bytes += bytes;
	}
}

/* Charges the socket's packets to `owner` from now on. */
static void set_socket_owner(struct sock *sk, __u32 owner)
{
	__u64 cookie = bpf_get_socket_cookie(sk);
	__u32 *stored = bpf_map_lookup_elem(&socket_owners, &cookie);

	if (!stored)
		bpf_map_update_elem(&socket_owners, &cookie, &owner, BPF_ANY);
	else if (*stored != owner)
		*stored = owner;
}

static void count_transfer(struct sock *sk, _Bool sends, int bytes)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct bpf_config *config = get_config();
	__u64 now = bpf_ktime_get_ns();
	struct link link = {};
	struct link_use *use;

	if (!config || !leaves_the_machine(sk))
		return;
	if (bytes <= 0 && !(sends && bytes == -EAGAIN))
		return;
	link.ifindex = interface_of(sk);
	if (link.ifindex == LOOPBACK_IFINDEX)
		return;
	link.netns = sk->__sk_common.skc_net.net->ns.inum;

	struct link_key key = {.owner = classify_task(task, config),
			       .link = link};
	struct device device = {
		.kind = LINK, .a = link.ifindex, .b = link.netns};

	set_socket_owner(sk, key.owner);
	use = link_use_of(&key);
	if (!use)
		return;
	count_call(use, sends, bytes);
	use->last_ns = now;
	if (bytes > 0)
		note_process_use(task, key.owner, &device, bytes, config);
	note_device_use(key.owner, &device, now, config);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(socket_sent, struct sock *sk, int bytes)
{
	count_transfer(sk, 1, bytes);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(socket_received, struct sock *sk, int bytes)
{
	count_transfer(sk, 0, bytes);
	return 0;
}

/*
 * Sets the owner of a socket that connects, and removes the entry of a closed
 * socket.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(socket_state, struct sock *sk, int before, int now)
{
	struct bpf_config *config = get_config();
	__u64 cookie;

	if (config && now == TCP_SYN_SENT) {
		set_socket_owner(
			sk, classify_task(bpf_get_current_task_btf(), config));
	} else if (now == TCP_CLOSE) {
		cookie = sk->__sk_common.skc_cookie.counter;
		bpf_map_delete_elem(&socket_owners, &cookie);
	}
	return 0;
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(packet_queued, struct sk_buff *skb)
{
	struct sock *sk = BPF_CORE_READ(skb, sk);
	struct net_device *dev = skb->dev;
	struct bpf_config *config = get_config();
	__u64 now = bpf_ktime_get_ns();
	struct link_key key = {};
	struct link_use *use;
	__u64 cookie;
	__u32 *owner;

	if (!config || !sk || dev->ifindex == LOOPBACK_IFINDEX)
		return 0;
	cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	owner = cookie ? bpf_map_lookup_elem(&socket_owners, &cookie) : 0;
	if (!owner)
		return 0;
	key.owner = *owner;
	key.link.ifindex = dev->ifindex;
	key.link.netns = dev->nd_net.net->ns.inum;
	use = link_use_of(&key);
	if (!use)
		return 0;
	use->packets += 1;
	use->last_ns = now;

	struct device device = {
		.kind = LINK, .a = key.link.ifindex, .b = key.link.netns};

	note_device_use(key.owner, &device, now, config);
	return 0;
}
