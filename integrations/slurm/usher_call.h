/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Sends a call to Usher's daemon and waits for the reply until a deadline.
 */
#ifndef USHER_CALL_H
#define USHER_CALL_H

#include <stddef.h>
#include <stdint.h>

#include "usher_json.h"

enum call_result {
	CALL_REPLIED,
	/* No daemon listens at the path. */
	CALL_ABSENT,
	/* The queue of the daemon's socket is full. */
	CALL_FULL,
	/* The process that listens belongs neither to root nor to this user. */
	CALL_FOREIGN,
	/* The deadline has passed. */
	CALL_LATE,
	/* The connection was closed, or the reply is no reply of a daemon. */
	CALL_BROKEN,
};

/* Returns what the result means, as a part of a sentence. */
const char *call_text(enum call_result result);

/* Returns the time of CLOCK_MONOTONIC in milliseconds. */
int64_t call_now_ms(void);

/* Sends a message and its NUL to the socket at `path`, and reads the reply. No
 * step waits longer than `end_ms`. The connection is closed afterwards. */
enum call_result call_daemon(const char *path, const struct json_text *message,
			     int64_t end_ms, struct json_reply *reply);

#endif
