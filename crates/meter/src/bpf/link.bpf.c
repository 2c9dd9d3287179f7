// SPDX-License-Identifier: GPL-2.0-only
/*
 * Network interfaces: calls that send and receive, and their bytes, by the
 * interface of the socket's route; and the packets that the kernel sends for a
 * socket, acknowledgements and the opening of a connection included. IPv4 and
 * IPv6 alone: what other sockets carry stays in the machine.
 *
 * Loopback is no device that anybody contends for, and is not counted.
 *
 * A call tells when it returns, and a bulk sender has long been in it then, or
 * has filled a buffer and gone: it is packets that say who uses an interface
 * now. In whose name a packet goes cannot be asked where it is sent; it is that
 * of the socket's last call, or of who opened the connection. A packet sent in
 * the socket's first call is nobody's therefore, as the first datagram is, and
 * is told by the call.
 *
 * Sockets are told apart by their cookies, which the kernel gives out once and
 * never again: a new socket at an old one's place in memory has another, or
 * none yet.
 *
 * A call that moved nothing is not counted. One exception: a send refused for
 * want of room (EAGAIN) says that its sender wants the interface now, and
 * counts as a moment of use, though not as a call.
 */
#include "bell.h"
#include "users.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct link_key);
	__type(value, struct link_use);
} link_uses SEC(".maps");

/*
 * Parties by the socket's cookie; those not heard of for longest make room for
 * others.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u32);
} owners SEC(".maps");

static struct link_use *link_use_of(struct link_key *key)
{
	struct link_use *use = bpf_map_lookup_elem(&link_uses, key);

	if (!use) {
		struct link_use none = {};

		bpf_map_update_elem(&link_uses, key, &none, BPF_NOEXIST);
		use = bpf_map_lookup_elem(&link_uses, key);
		if (!use)
			lose(LOST_DEVICE);
	}
	return use;
}

/*
 * The route that the socket keeps; a socket without one (datagrams to changing
 * places) may be bound to an interface, or have heard from one.
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

static void count(struct link_use *use, _Bool sends, int bytes)
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

/* Says for whom the socket's packets are from now on. */
static void own(struct sock *sk, __u32 party)
{
	__u64 cookie = bpf_get_socket_cookie(sk);
	__u32 *owner = bpf_map_lookup_elem(&owners, &cookie);

	if (!owner)
		bpf_map_update_elem(&owners, &cookie, &party, BPF_ANY);
	else if (*owner != party)
		*owner = party;
}

static void transfer(struct sock *sk, _Bool sends, int bytes)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct control *orders = orders_given();
	__u64 now = bpf_ktime_get_ns();
	struct link link = {};
	struct link_use *use;

	if (!orders || !leaves_the_machine(sk))
		return;
	if (bytes <= 0 && !(sends && bytes == -EAGAIN))
		return;
	link.ifindex = interface_of(sk);
	if (link.ifindex == LOOPBACK_IFINDEX)
		return;
	link.netns = sk->__sk_common.skc_net.net->ns.inum;

	struct link_key key = {.party = party_of(task, orders), .link = link};
	struct device device = {
		.kind = LINK, .a = link.ifindex, .b = link.netns};

	own(sk, key.party);
	use = link_use_of(&key);
	if (!use)
		return;
	count(use, sends, bytes);
	use->last_ns = now;
	if (bytes > 0)
		note_user(task, key.party, &device, bytes, orders);
	note_meeting(key.party, &device, now, orders);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(socket_sent, struct sock *sk, int bytes)
{
	transfer(sk, 1, bytes);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(socket_received, struct sock *sk, int bytes)
{
	transfer(sk, 0, bytes);
	return 0;
}

/* A connection is opened, or closed: its socket is not heard of again. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(socket_state, struct sock *sk, int before, int now)
{
	struct control *orders = orders_given();
	__u64 cookie;

	if (orders && now == TCP_SYN_SENT) {
		own(sk, party_of(bpf_get_current_task_btf(), orders));
	} else if (now == TCP_CLOSE) {
		cookie = sk->__sk_common.skc_cookie.counter;
		bpf_map_delete_elem(&owners, &cookie);
	}
	return 0;
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(packet_queued, struct sk_buff *skb)
{
	struct sock *sk = BPF_CORE_READ(skb, sk);
	struct net_device *dev = skb->dev;
	struct control *orders = orders_given();
	__u64 now = bpf_ktime_get_ns();
	struct link_key key = {};
	struct link_use *use;
	__u64 cookie;
	__u32 *owner;

	if (!orders || !sk || dev->ifindex == LOOPBACK_IFINDEX)
		return 0;
	cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	owner = cookie ? bpf_map_lookup_elem(&owners, &cookie) : 0;
	if (!owner)
		return 0;
	key.party = *owner;
	key.link.ifindex = dev->ifindex;
	key.link.netns = dev->nd_net.net->ns.inum;
	use = link_use_of(&key);
	if (!use)
		return 0;
	use->packets += 1;
	use->last_ns = now;

	struct device device = {
		.kind = LINK, .a = key.link.ifindex, .b = key.link.netns};

	note_meeting(key.party, &device, now, orders);
	return 0;
}
