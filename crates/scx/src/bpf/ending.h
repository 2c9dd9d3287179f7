/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Report of the end of a scheduler
 *
 * The kernel calls `exit` once, when it has taken all threads back: on request, or because of an
 * error, a stalled thread or a CPU hotplug. The callback copies the exit code, the reason, the
 * message and the dump into maps, and sends an event to the ring buffer `ended`, on which user
 * space polls. The reason, the message and the dump are cut at REASON_BYTES, MESSAGE_BYTES and
 * DUMP_BYTES (128 bytes, 1 KiB, 128 KiB).
 *
 * A text that cannot be read stays empty. A full ring buffer loses the event; the maps still hold
 * the report, because the callback writes `kind` last.
 */
#ifndef USHER_SCX_ENDING_H
#define USHER_SCX_ENDING_H

#include "machine.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ending);
} endings SEC(".maps");

struct dump {
	char text[DUMP_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dump);
} dumps SEC(".maps");

/* The ring buffer is one page. User space replaces this size by the page size of the machine. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ended SEC(".maps");

OP(usher_exit)
void BPF_PROG(usher_exit, struct scx_exit_info *info)
{
	struct ending *ending = ONLY(endings);
	struct dump *dump = ONLY(dumps);
	__u32 kind = BPF_CORE_READ(info, kind);

	if (!ending || !dump)
		return;
	ending->code = BPF_CORE_READ(info, exit_code);
	bpf_probe_read_kernel_str(ending->reason, sizeof(ending->reason),
				  BPF_CORE_READ(info, reason));
	bpf_probe_read_kernel_str(ending->message, sizeof(ending->message),
				  BPF_CORE_READ(info, msg));
	bpf_probe_read_kernel_str(dump->text, sizeof(dump->text),
				  BPF_CORE_READ(info, dump));
	ending->kind = kind;
	bpf_ringbuf_output(&ended, &kind, sizeof(kind), 0);
}

#endif
