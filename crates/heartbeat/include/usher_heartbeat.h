/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Progress reports of programs on a page of shared memory, for C99 and C++11.
 *
 *     #include "usher_heartbeat.h"
 *     ...
 *     usher_describe("frames", 0.0, "encoder");   // optional
 *     while (encode_frame())
 *         usher_beat(1);
 *
 * The environment variable USHER_HEARTBEAT has the path of the page. If the
 * variable is not set, or the page is not of this version, every call has no
 * effect. A beat is one atomic addition. Any thread may call any function. The
 * README beside this header describes the layout.
 */
#ifndef USHER_HEARTBEAT_H
#define USHER_HEARTBEAT_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define USHER_HEARTBEAT_MAGIC "USHERHB1"
#define USHER_HEARTBEAT_VERSION 1u
#define USHER_HEARTBEAT_SLOTS 1024

/* The useful and the waiting time of a thread, for runtimes that measure these
 * times; see the README. */
struct usher_heartbeat_slot {
	uint32_t sequence; /* odd while being written */
	uint32_t state; /* 0 free, 1 useful, 2 waiting, 3 claimed */
	uint64_t since_ns; /* CLOCK_MONOTONIC */
	uint64_t useful_ns; /* wall */
	uint64_t waiting_ns; /* wall */
	uint64_t useful_cpu_ns;
	uint64_t waiting_cpu_ns;
	uint64_t events;
	uint32_t tid;
	uint32_t unused;
};

struct usher_heartbeat_page {
	char magic[8];
	uint32_t version;
	uint32_t page_bytes;
	uint32_t slots;
	uint32_t slots_requested;
	char unused0[40];
	uint64_t work; /* units done; only added to */
	char unused1[56];
	double target_per_s; /* 0: none */
	char unit[32];
	char label[64];
	char unused2[3864];
	struct usher_heartbeat_slot slot[USHER_HEARTBEAT_SLOTS];
};

/*
 * Maps the page that the environment variable names; NULL if there is no usable
 * page.
 */
static inline struct usher_heartbeat_page *usher_heartbeat_map(void)
{
	const char *path = getenv("USHER_HEARTBEAT");
	struct usher_heartbeat_page *page;
	struct stat st;
	void *at = MAP_FAILED;
	int fd;

	if (!path || (fd = open(path, O_RDWR | O_CLOEXEC)) < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof(*page))
		at = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
			  MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		return NULL;
	page = (struct usher_heartbeat_page *)at;
	if (memcmp(page->magic, USHER_HEARTBEAT_MAGIC, 8) != 0 ||
	    page->version != USHER_HEARTBEAT_VERSION) {
		munmap(at, sizeof(*page));
		return NULL;
	}
	return page;
}

/*
 * Returns the page, which the first call maps; NULL if there is no usable page.
 */
static inline struct usher_heartbeat_page *usher_heartbeat(void)
{
	static struct usher_heartbeat_page *page; /* NULL: not mapped yet */
	static struct usher_heartbeat_page *const unavailable =
		(struct usher_heartbeat_page *)-1;
	struct usher_heartbeat_page *now =
		__atomic_load_n(&page, __ATOMIC_ACQUIRE);

	if (!now) {
		struct usher_heartbeat_page *mapped = usher_heartbeat_map();
		struct usher_heartbeat_page *next =
			mapped ? mapped : unavailable;

		if (__atomic_compare_exchange_n(&page, &now, next, 0,
						__ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			now = next;
		else if (mapped) /* another thread has mapped it */
			munmap((void *)mapped, sizeof(*mapped));
	}
	return now == unavailable ? NULL : now;
}

/* Adds `units` units of completed work. */
static inline void usher_beat(uint64_t units)
{
	struct usher_heartbeat_page *page = usher_heartbeat();

	if (page)
		__atomic_fetch_add(&page->work, units, __ATOMIC_RELAXED);
}

/*
 * Describes the work: the name of a unit, the intended number of units per
 * second (0: as fast as possible), and a label for display. Texts that are too
 * long are cut.
 */
static inline void usher_describe(const char *unit, double target_per_s,
				  const char *label)
{
	struct usher_heartbeat_page *page = usher_heartbeat();

	if (!page)
		return;
	strncpy(page->unit, unit, sizeof(page->unit) - 1);
	page->unit[sizeof(page->unit) - 1] = '\0';
	strncpy(page->label, label, sizeof(page->label) - 1);
	page->label[sizeof(page->label) - 1] = '\0';
	__atomic_store(&page->target_per_s, &target_per_s, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif

#endif
