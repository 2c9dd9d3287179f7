/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Writes the calls and reads the replies of Usher's daemon: JSON objects, each
 * followed by a NUL. No function allocates memory.
 */
#ifndef USHER_JSON_H
#define USHER_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A text that is written into a buffer. When the buffer is full, `full` is set,
 * and the text is useless. */
struct json_text {
	char *bytes;
	size_t size;
	size_t used;
	bool full;
};

/* Appends bytes as they are. */
void json_raw(struct json_text *text, const char *raw);
/* Appends a string in quotation marks. Bytes that are no UTF-8 become `?`. */
void json_string(struct json_text *text, const char *string);
void json_number(struct json_text *text, int64_t number);
/* Appends a list of CPUs, such as "0-3,8", from a mask of `bytes` bytes. */
void json_cpus(struct json_text *text, const unsigned char *mask, size_t bytes);

/* A reply of the daemon. */
struct json_reply {
	bool has_id;
	int64_t id;
	/* The name of the error without its interface; empty if there is none. */
	char error[48];
	/* The reason of the error; empty if there is none. */
	char reason[160];
};

/* Reads a reply of `length` bytes, without the NUL. Returns false if the bytes
 * are no JSON object. Objects and arrays may be nested to a depth of 16. */
bool json_read_reply(struct json_reply *reply, const char *bytes,
		     size_t length);

#endif
