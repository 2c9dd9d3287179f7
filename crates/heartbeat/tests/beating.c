/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Test program: `layout` prints offsets, `beat N` beats N times, `die N` beats
 * N times and aborts.
 */
#define _GNU_SOURCE
#include "usher_heartbeat.h"

#include <stdio.h>

#define OFFSET(field) \
	printf(#field " %zu\n", offsetof(struct usher_heartbeat_page, field))
#define SLOT_OFFSET(field) \
	printf("slot." #field " %zu\n", \
	       offsetof(struct usher_heartbeat_slot, field))

static void layout(void)
{
	OFFSET(version);
	OFFSET(page_bytes);
	OFFSET(slots);
	OFFSET(slots_requested);
	OFFSET(work);
	OFFSET(target_per_s);
	OFFSET(unit);
	OFFSET(label);
	OFFSET(slot);
	SLOT_OFFSET(sequence);
	SLOT_OFFSET(state);
	SLOT_OFFSET(since_ns);
	SLOT_OFFSET(useful_ns);
	SLOT_OFFSET(waiting_ns);
	SLOT_OFFSET(useful_cpu_ns);
	SLOT_OFFSET(waiting_cpu_ns);
	SLOT_OFFSET(events);
	SLOT_OFFSET(tid);
	printf("page %zu\n", sizeof(struct usher_heartbeat_page));
	printf("slot.size %zu\n", sizeof(struct usher_heartbeat_slot));
}

int main(int argc, char **argv)
{
	long beats = argc > 2 ? atol(argv[2]) : 0;

	if (argc > 1 && strcmp(argv[1], "layout") == 0) {
		layout();
		return 0;
	}
	usher_describe("a unit whose name is much too long to be kept", 12.5,
		       "beating.c");
	for (long i = 0; i < beats; i++)
		usher_beat(2);
	if (argc > 1 && strcmp(argv[1], "die") == 0)
		abort();
	return usher_heartbeat() ? 0 : 3;
}
